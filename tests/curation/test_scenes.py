from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from pairloc.boxes import area, iou
from pairloc.curation.drawings import SOURCE, TARGET
from pairloc.curation.scenes import draw_scene, write_scenes
from pairloc.formats import read
from pairloc.formats.reading import read_annotated
from pairloc.settings import SceneSettings

SMALL = SceneSettings(source_images=30, target_images=30, size=64)


def test_source_and_target_classes_are_disjoint() -> None:
    assert len(SOURCE) + len(TARGET) >= 24
    assert not set(SOURCE) & set(TARGET)
    assert any(" " in name for name in TARGET)


def test_the_same_seed_draws_the_same_scene_in_any_order() -> None:
    first, second = (draw_scene(SMALL, 7, target=True) for _ in range(2))
    assert first.image.tobytes() == second.image.tobytes()
    assert first.names == second.names
    np.testing.assert_array_equal(first.boxes, second.boxes)
    other = draw_scene(SceneSettings(seed=1, size=64), 7, target=True)
    assert other.image.tobytes() != first.image.tobytes()


def test_boxes_are_tight_and_inside() -> None:
    for index in range(60):
        scene = draw_scene(SMALL, index, target=index % 2 == 0)
        assert scene.image.size == (64, 64)
        assert (scene.boxes >= 0).all()
        assert (scene.boxes <= 64).all()
        assert (area(scene.boxes) > 9).all()


def test_target_scenes_show_a_target_among_distractors_and_source_scenes_none() -> None:
    with_distractors = 0
    for index in range(60):
        names = draw_scene(SMALL, index, target=True).names
        assert set(names) & set(TARGET)
        with_distractors += bool(set(names) & set(SOURCE))
        assert not set(draw_scene(SMALL, index, target=False).names) & set(TARGET)
    assert with_distractors >= 50


def test_the_largest_object_is_often_a_distractor() -> None:
    scenes = [draw_scene(SMALL, index, target=True) for index in range(200)]
    wrong = sum(scene.names[int(np.argmax(area(scene.boxes)))] in SOURCE for scene in scenes)
    assert 60 <= wrong <= 150


def test_objects_of_a_class_vary_in_size() -> None:
    sizes: dict[str, list[float]] = {}
    for index in range(200):
        scene = draw_scene(SMALL, index, target=True)
        for name, box in zip(scene.names, scene.boxes, strict=True):
            sizes.setdefault(name, []).append(float(area(box) ** 0.5))
    assert all(np.ptp(sizes[name]) > 10 for name in TARGET)


def test_written_scenes_are_read_like_any_data_set(tmp_path: Path) -> None:
    split = write_scenes(tmp_path, SMALL)
    source, truth = read_annotated(tmp_path / "source.json")
    assert len(source) == 30
    assert (tmp_path / "images" / source.images[0].file).is_file()
    assert set(source.classes) == set(SOURCE)
    assert np.diag(iou(truth.boxes, split.source[1].boxes)) == pytest.approx(1, abs=1e-3)
    tags, target = read(tmp_path / "target_tags.csv"), read(tmp_path / "target_truth.json")
    assert [set(tags.names(index)) for index in range(30)] == [set(target.names(index)) for index in range(30)]
    assert not {image.id for image in source.images} & {image.id for image in target.images}


@pytest.mark.parametrize("values", [{"seed": -1}, {"size": 3}, {"source_images": 0}, {"sead": 1}])
def test_invalid_settings_are_rejected(values: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        SceneSettings.model_validate(values)
