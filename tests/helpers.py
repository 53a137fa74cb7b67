"""Small data sets for tests, in every format."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image as Pil

from pairloc.bags.store import Bag, BagStore, StoreWriter
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.executors import Serial
from pairloc.localization.alternate import silent
from pairloc.localization.functions import TransferScores
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS, Session
from pairloc.localization.outcome import Outcome
from pairloc.localization.target import Selection, Target
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.settings import FeatureSettings, LocalizationSettings, ProposerSettings, RunSettings, TransferSettings

Json = dict[str, object]
TINY = ProposerSettings(
    image_size=64,
    pyramid=16,
    levels=2,
    roi=3,
    head=32,
    sampled_rois=16,
    epochs=1,
    batch=8,
    warm_up=2,
    held_out=0.2,
    anchor=16,
)


TINY_RUN = """
methods = ["warm-up-unary", "full", "fine-tuned"]
[data.scenes]
size = 64
source_images = 40
target_images = 12
[proposer]
image_size = 64
pyramid = 16
levels = 2
roi = 3
head = 32
sampled_rois = 16
epochs = 2
batch = 8
warm_up = 2
anchor = 16
[extract]
proposals = 10
shard = 16
class_features = "none"
[transfer]
images = 30
foreground_iou = 0.5
[transfer.features]
kind = "transfer"
dimensions = 0
geometry = false
[transfer.unary]
fit = "sampled"
[transfer.pairs]
kind = "relation"
[transfer.training]
steps = 10
pairs = 4
[localization]
rounds = 2
folds = 2
exclusion_iou = 1.0
[localization.energy]
lambda1 = 0.5
max_compared_bags = 0
[localization.solver]
k = 2
iterations = 10
[localization.features]
kind = "transfer"
dimensions = 0
geometry = false
[localization.unary]
combination = "mixed"
decay = 0.01
fit = "sampled"
trust = 0.0
other_tag_weight = 0.0
area_penalty = 0.0
max_area = 1.0
[localization.pairs]
kind = "relation"
[localization.training]
steps = 5
pairs = 4
[localization.boxes]
voting_iou = 0.0
[fine_tune]
steps = 2
batch = 8
warm_up = 1
"""


def image_file(path: Path, size: tuple[int, int] = (40, 30), *, orientation: int | None = None) -> Path:
    """Write an image to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Pil.new("RGB", size, (200, 30, 30))
    if orientation is None:
        image.save(path)
    else:
        exif = Pil.Exif()
        exif[0x0112] = orientation
        image.save(path, exif=exif)
    return path


def sample() -> tuple[Dataset, ScoredBoxes]:
    """Three images, two classes, one image without a box."""
    images = (Image(1, "a.png", (40, 30)), Image(2, "sub dir/b c.png", (50, 60)), Image(7, "empty.png", (10, 10)))
    dataset = Dataset(images, ("hot dog", "cat"), ((0, 1), (1,), ()))
    boxes = ScoredBoxes(
        np.array([0, 0, 1]),
        np.array([0, 1, 1]),
        np.array([[1.0, 2.0, 11.0, 12.0], [0.0, 0.0, 40.0, 30.0], [10.0, 20.0, 50.0, 60.0]]),
        np.array([0.5, 0.25, 1.0]),
    )
    return dataset, boxes


def write_images(folder: Path, dataset: Dataset) -> Path:
    """Write the images of a data set to disk."""
    for image in dataset.images:
        image_file(folder / image.file, image.size or (8, 8))
    return folder


def coco(**changes: object) -> Json:
    """Return the content of a small valid COCO file; keyword arguments replace keys."""
    return {
        "images": [
            {"id": 1, "file_name": "a.png", "width": 40, "height": 30},
            {"id": 2, "file_name": "b.png", "width": 40, "height": 30},
        ],
        "categories": [{"id": 5, "name": "hot dog"}, {"id": 9, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 5, "bbox": [1, 2, 10, 10], "iscrowd": 0},
            {"id": 2, "image_id": 2, "category_id": 9, "bbox": [0, 0, 40, 30], "iscrowd": 0},
        ],
    } | changes


def write_json(path: Path, content: object) -> Path:
    """Write a JSON file as another program would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def voc_xml(name: str, *objects: tuple[str, int, int, int, int], size: tuple[int, int] = (40, 30)) -> str:
    """Return an annotation in the XML format of VOC and ILSVRC."""
    objects_xml = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        "</bndbox></object>"
        for label, x1, y1, x2, y2 in objects
    )
    width, height = size
    size_xml = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation><filename>{name}</filename>{size_xml}{objects_xml}</annotation>"


def write_ilsvrc(root: Path) -> Path:
    """Write a toy ILSVRC DET folder with two validation and two training images."""
    for name, synset in (
        ("val/ILSVRC2013_val_00000001", "n01"),
        ("val/ILSVRC2013_val_00000002", "n02"),
        ("train/ILSVRC2013_train/n01/n01_1", "n01"),
        ("train/ILSVRC2013_train/n02/n02_1", "n02"),
    ):
        xml = root / "Annotations" / "DET" / f"{name}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        xml.write_text(voc_xml(Path(name).name, (synset, 0, 0, 9, 19)))
        image_file(root / "Data" / "DET" / f"{name}.JPEG".replace("JPEG", "jpeg"))
    (root / "map_det.txt").write_text("n01 1 hot dog\nn02 2 zebra\n")
    sets = root / "ImageSets" / "DET"
    sets.mkdir(parents=True)
    (sets / "val.txt").write_text("ILSVRC2013_val_00000001 1\nILSVRC2013_val_00000002 2\n")
    return root


def planted_store(
    path: Path, *, classes: int = 3, bags: int = 30, proposals: int = 6, d: int = 12, seed: int = 0, noise: float = 0.3
) -> tuple[BagStore, np.ndarray]:
    """Write a store whose bags show one class each; return it with the index (N,) of the proposal that shows it.

    The feature of a proposal is the direction of its class, plus noise.
    """
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.normal(size=(d, d)))[0] * 3
    names = tuple(f"class {c}" for c in range(classes))
    label = np.arange(bags) % classes
    images = tuple(Image(i + 1, f"{i}.jpg", (100, 100)) for i in range(bags))
    dataset = Dataset(images, names, tuple((int(c),) for c in label))
    shown = random.integers(0, proposals, bags)
    with StoreWriter(path, dataset, {}, shard=7) as writer:
        all_bags = []
        for i in range(bags):
            corner = random.uniform(0, 60, (proposals, 2))
            boxes = np.concatenate([corner, corner + random.uniform(10, 40, (proposals, 2))], axis=1)
            features = random.normal(0, noise, (proposals, d)) + directions[random.integers(classes, d, proposals)]
            features[shown[i]] = directions[label[i]] + random.normal(0, noise, d)
            half = features.astype(np.float16)
            all_bags.append(
                Bag(boxes.astype(np.float32), random.normal(size=proposals).astype(np.float32), half, half, (100, 100))
            )
        for number in writer.missing():
            first, last = writer.ranges[number]
            writer.write(number, all_bags[first:last])
        writer.finish()
    return BagStore(path), shown


def plain(kind: Literal["transfer", "class", "both"]) -> FeatureSettings:
    """Return settings that use the features unchanged: no reduction, no geometry."""
    return FeatureSettings(kind=kind, dimensions=0, geometry=False)


def planted_target(path: Path, **options: float) -> tuple[Target, np.ndarray]:
    """Return a planted store as a Target, with unchanged features."""
    store, shown = planted_store(path, **options)  # type: ignore[arg-type]
    return Target.of(Bags(store, plain("transfer")), partial(Bags, store, plain("class")), store.dataset), shown


def planted_truth(store: BagStore, shown: np.ndarray) -> tuple[Dataset, GroundTruth]:
    """Return the annotations of a planted store: the boxes of the proposals `shown` (N,)."""
    proposals = enumerate(shown.tolist())
    boxes = np.stack([store.bag(index).boxes[proposal] for index, proposal in proposals]).astype(np.float64)
    label = np.array([tags[0] for tags in store.dataset.tags])
    none = np.zeros(len(store), dtype=np.bool_)
    return store.dataset, GroundTruth(np.arange(len(store)), label, boxes, none)


def planted_scores(target: Target, shown: np.ndarray, settings: TransferSettings | None = None) -> TransferScores:
    """Learn transfer scores from the planted objects; by default sampled unary scores and a relation network."""
    labels = torch.full((target.bags.count, target.bags.size), -1)
    labels[torch.arange(len(shown)), torch.from_numpy(shown)] = torch.arange(len(shown)) % len(target.classes)
    return learn_transfer(target.bags, Labels.of(labels), settings or plain_transfer())[0]


def plain_transfer(steps: int = 60, pairs: str = "relation", **changes: object) -> TransferSettings:
    """Return transfer settings for planted bags; `changes` are keys of `training`."""
    return TransferSettings.model_validate(
        {
            "foreground_iou": 0.5,
            "features": plain("transfer"),
            "unary": {"fit": "sampled"},
            "pairs": {"kind": pairs},
            "training": {"steps": steps, "pairs": 8, "lr": 0.01} | changes,
        }
    )


def plain_settings(**changes: object) -> LocalizationSettings:
    """Return settings for planted bags: the method of the paper without any additions.

    A change replaces a value or updates a group: `plain_settings(energy={"alpha": 2.0})`.
    """
    base: dict[str, dict[str, object]] = {
        "energy": {"lambda1": 0.5, "max_compared_bags": 0},
        "features": {"kind": "class", "dimensions": 0, "geometry": False},
        "unary": {
            "combination": "mixed",
            "fit": "sampled",
            "trust": 0.0,
            "other_tag_weight": 0.0,
            "area_penalty": 0.0,
            "max_area": 1.0,
        },
        "pairs": {"kind": "relation"},
        "training": {"steps": 40, "pairs": 8, "lr": 0.01},
        "boxes": {"voting_iou": 0.0},
    }
    values: dict[str, object] = {"rounds": 2, "folds": 3, "exclusion_iou": 1.0, **base}
    for name, change in changes.items():
        values[name] = base.get(name, {}) | change if isinstance(change, dict) else change
    return LocalizationSettings.model_validate(values)


def results(folder: Path) -> dict[str, bytes]:
    """Read every file of a run that is determined by settings and seed; other files contain times."""
    names = ("boxes.json", "transfer.safetensors", "proposer.safetensors", "state.safetensors", "calibration.json")
    found = {f.relative_to(folder).as_posix(): f for name in names for f in folder.rglob(name)}
    found |= {f.relative_to(folder).as_posix(): f for f in folder.rglob("*.npy")}
    return {name: _without_times(file) for name, file in found.items()}


def _without_times(file: Path) -> bytes:
    if file.name != "state.safetensors":
        return file.read_bytes()
    from safetensors.numpy import load_file

    return b"".join(tensor.tobytes() for _, tensor in sorted(load_file(file).items()))


def recipe(
    method: str,
    target: Target,
    transfer: TransferScores | Learned,
    settings: LocalizationSettings,
    checkpoint: Path | None = None,
) -> Outcome:
    """Run a method on a target; a baseline gets its own settings with the same features."""
    learned = transfer if isinstance(transfer, Learned) else Learned(transfer)
    session = Session(target, learned, Serial(), silent, checkpoint)
    own = {"rounds": settings.rounds, "features": settings.features}
    run = RunSettings.model_validate(
        {"data": {"scenes": {}}, "localization": settings, "mi_svm": own | {"folds": settings.folds}, "deselaers": own}
    )
    return METHODS[method].recipe(session, METHODS[method].section(run))


def found_fraction(target: Target, shown: np.ndarray, selection: Selection) -> float:
    """Return the fraction of tags whose planted proposal was selected."""
    hits = [torch.from_numpy(shown)[bags] == chosen for bags, chosen in zip(target.positives, selection, strict=True)]
    return float(torch.cat(hits).double().mean())


def slow_cross_entropy(x: float, y: float) -> float:
    """Sigmoid cross-entropy as the paper writes it (eq. sig_cross_entropy)."""
    sigmoid = 1 / (1 + math.exp(-x))
    return -(1 - y) * math.log(1 - sigmoid) - y * math.log(sigmoid)
