from pathlib import Path

import pytest

import pairloc
from helpers import TINY
from pairloc.curation.scenes import write_scenes
from pairloc.errors import InputError
from pairloc.formats.reading import read
from pairloc.settings import ExtractSettings, LearningSettings, SceneSettings, TransferSettings

LEARNING = LearningSettings(features="transfer", steps=5, pairs=4, rounds=1, folds=2, k=2, iterations=10)


def test_fit_localize_save_and_load(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=40, target_images=8))
    tagged = read(tmp_path / "target_tags.csv")
    extract = ExtractSettings(proposals=8, class_features="none")
    localizer = pairloc.Localizer(
        proposer=TINY.model_copy(update={"held_out": 0.05}),
        extract=extract,
        transfer=TransferSettings(steps=5, pairs=4),
        learning=LEARNING,
        device="cpu",
    )
    pictures = [tagged.path(i) for i in range(len(tagged))]
    tags = [tagged.names(i) for i in range(len(tagged))]
    with pytest.raises(InputError, match="learned nothing yet"):
        localizer.localize(pictures, tags)
    localizer.fit(tmp_path / "source.json")
    boxes = localizer.localize(pictures, tags)
    assert len(boxes) == sum(map(len, tags))
    assert localizer.dataset_ is not None
    assert [localizer.dataset_.classes[c] for c in boxes.label[boxes.image == 0]] == sorted(tags[0])
    localizer.save(tmp_path / "kept")
    again = pairloc.Localizer.load(tmp_path / "kept", extract=extract, learning=LEARNING, device="cpu")
    table = {str(p): t for p, t in zip(pictures, tags, strict=True)}
    other = again.localize([str(p) for p in pictures], table)
    assert other.boxes.tolist() == boxes.boxes.tolist()
    with pytest.raises(InputError, match="8 pictures but 1 entries of tags"):
        localizer.localize(pictures, [["a"]])
    with pytest.raises(InputError, match="no picture has a tag"):
        localizer.localize(pictures, [[]] * 8)


def test_there_is_nothing_else_to_import() -> None:
    with pytest.raises(AttributeError):
        pairloc.Nothing  # noqa: B018
