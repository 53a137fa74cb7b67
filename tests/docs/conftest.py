"""A folder with everything that the pages of the documentation name, from generated scenes."""

import json
import shutil
from pathlib import Path

import pytest

CONFIG = """
methods = ["warm-up-unary", "full"]
[data]
source = "source.json"
source_images = "images"
target = "tags.csv"
target_images = "images"
truth = "truth.json"
[proposer]
image_size = 64
pyramid = 16
levels = 2
roi = 3
head = 32
sampled_rois = 16
epochs = 1
batch = 8
warm_up = 2
anchor = 16
[extract]
proposals = 60
class_features = "none"
[transfer]
features.kind = "transfer"
features.dimensions = 0
training.steps = 10
[localization]
features.kind = "transfer"
features.dimensions = 0
folds = 2
"""


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, a settings file, a finished run, boxes and a demo."""
    import torch

    from pairloc.curation.scenes import write_scenes
    from pairloc.formats.reading import read
    from pairloc.presets import read_config
    from pairloc.runs.localize import localize, localize_settings
    from pairloc.runs.run import Run
    from pairloc.settings import SceneSettings

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("docs")
    write_scenes(folder / "scenes", SceneSettings(source_images=60, target_images=12, size=64))
    shutil.copytree(folder / "scenes" / "images", folder / "images")
    for ours, theirs in (
        ("source.json", "source.json"),
        ("tags.csv", "target_tags.csv"),
        ("truth.json", "target_truth.json"),
    ):
        shutil.copy(folder / "scenes" / theirs, folder / ours)
    shutil.rmtree(folder / "scenes")
    first, second = sorted((folder / "images").glob("target*"))[:2]
    for name, image in (("beach", first), ("kitchen", second), ("a", first), ("b", second)):
        shutil.copy(image, folder / "images" / f"{name}.jpg")
    (folder / "mine.toml").write_text(CONFIG)
    Run(folder / "runs" / "mine", read_config(folder / "mine.toml"), log=lambda line: None).run()
    shutil.copytree(folder / "runs" / "mine", folder / "demo")
    found = localize_settings(folder / "images", folder / "tags.csv", weights=str(folder / "runs" / "mine"))
    localize(found, folder / "found", "cpu", lambda line: None)
    truth = json.loads((folder / "truth.json").read_text())
    files = {image["id"]: image["file_name"] for image in truth["images"]}
    ids = {image.file: image.id for image in read(folder / "tags.csv").images}
    results = [
        {"image_id": ids[files[box["image_id"]]], "category_id": 1, "bbox": box["bbox"], "score": 0.5}
        for box in truth["annotations"]
    ]
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def workshop(prepared: Path, tmp_path: Path) -> Path:
    """A copy for one page."""
    return Path(shutil.copytree(prepared, tmp_path / "workshop"))
