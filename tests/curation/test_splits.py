from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import write_json
from pairloc.curation.splits import (
    COCO17,
    Annotated,
    _balanced_half,
    merge,
    split_classes,
    split_coco17,
    split_coco40,
    split_ilsvrc100,
    split_play,
    split_playing,
)
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.formats import read
from pairloc.formats.reading import read_annotated

NAMES = ("person", "cat", "hot dog", "bus")


def annotated(contents: list[list[tuple[str, bool]]], first_id: int = 1, names: tuple[str, ...] = NAMES) -> Annotated:
    """A data set whose images show the given (class, is crowd) objects, one box each."""
    rows = [(image, names.index(name), crowd) for image, things in enumerate(contents) for name, crowd in things]
    images = tuple(Image(first_id + i, f"{first_id + i}.jpg", (10, 10)) for i in range(len(contents)))
    tags = tuple(tuple(sorted({names.index(name) for name, crowd in things if not crowd})) for things in contents)
    truth = GroundTruth(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.tile([[1.0, 1.0, 5.0, 5.0]], (len(rows), 1)),
        np.array([row[2] for row in rows], dtype=np.bool_),
    )
    return Dataset(images, names, tags, tuple(range(11, 11 + len(names)))), truth


def ids(part: Annotated) -> list[int | str]:
    return [image.id for image in part[0].images]


def test_coco17_on_a_small_example() -> None:
    train = annotated(
        [
            [("person", False)],  # 1: source
            [("cat", False), ("person", False)],  # 2: source; its cat is removed
            [("cat", False), ("bus", False)],  # 3: target
            [("cat", False), ("person", True)],  # 4: target; crowds do not count
            [("cat", True)],  # 5: neither
            [],  # 6: neither
            [("cat", True), ("hot dog", False)],  # 7: source
        ]
    )
    val = annotated([[("person", False)], [("bus", False), ("person", False)], [("cat", True)]], first_id=101)
    split = split_coco17(train, val)
    assert ids(split.source) == [1, 2, 7]
    assert ids(split.target) == [3, 4, 102]
    assert split.source[0].classes == ("person", "hot dog")
    assert split.source[0].class_ids == (11, 13)
    assert split.target[0].classes == ("cat", "bus")
    assert [split.target[0].names(index) for index in range(3)] == [("cat", "bus"), ("cat",), ("bus",)]
    assert split.counts()["source"] == {"images": 3, "boxes": 3, "classes": 2}
    assert split.counts()["target"] == {"images": 3, "boxes": 4, "classes": 2}
    assert len(COCO17) == 17


def test_coco17_with_different_classes_in_each_file() -> None:
    train = annotated([[("person", False)]], names=("person",))
    val = annotated([[("cat", False)]], first_id=2, names=("cat",))
    split = split_coco17(train, val)
    assert (ids(split.source), split.source[0].classes) == ([1], ("person",))
    assert (ids(split.target), split.target[0].classes) == ([2], ("cat",))


things = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=4)


@given(st.lists(things, max_size=6), st.lists(things, max_size=4))
def test_coco17_equals_a_direct_implementation_of_the_rule(
    train: list[list[tuple[str, bool]]], val: list[list[tuple[str, bool]]]
) -> None:
    split = split_coco17(annotated(train), annotated(val, first_id=101))

    def has(entries: list[tuple[str, bool]], *, target: bool) -> bool:
        return any((name in COCO17) == target and not crowd for name, crowd in entries)

    source = [i + 1 for i, entries in enumerate(train) if has(entries, target=False)]
    target = [i + 1 for i, entries in enumerate(train) if has(entries, target=True) and not has(entries, target=False)]
    target += [i + 101 for i, entries in enumerate(val) if has(entries, target=True)]
    assert ids(split.source) == source
    assert ids(split.target) == target
    assert not set(split.source[0].classes) & set(COCO17)


@pytest.mark.parametrize(
    ("mixed", "source", "target"), [("source", [1, 3], [2]), ("target", [1], [2, 3]), ("both", [1, 3], [2, 3])]
)
def test_split_by_class_names(mixed: Literal["source", "target", "both"], source: list[int], target: list[int]) -> None:
    data = annotated([[("person", False)], [("hot dog", False)], [("hot dog", False), ("bus", False)], []])
    split = split_classes(data, ["hot dog"], mixed)
    assert ids(split.source) == source
    assert ids(split.target) == target
    assert split.target[0].classes == ("hot dog",)


def test_unknown_target_classes_and_no_source_are_rejected() -> None:
    data = annotated([[("person", False)]])
    with pytest.raises(InputError, match="no class 'dgo' in this data set; its classes are bus, cat"):
        split_classes(data, ["dgo"])
    with pytest.raises(InputError, match="leave some as source classes"):
        split_classes(data, NAMES)


def test_a_written_split_is_read_back(tmp_path: Path) -> None:
    split = split_classes(annotated([[("person", False)], [("hot dog", False), ("cat", False)]]), ["hot dog", "cat"])
    split.write(tmp_path)
    source, truth = read_annotated(tmp_path / "source.json")
    assert source == split.source[0]
    np.testing.assert_array_equal(truth.boxes, split.source[1].boxes)
    tags = read(tmp_path / "target_tags.csv")
    target = read(tmp_path / "target_truth.json")
    assert set(tags.names(0)) == set(target.names(0)) == {"hot dog", "cat"}


def test_data_sets_that_share_an_id_cannot_be_merged() -> None:
    with pytest.raises(InputError, match="an image with id 1 and cannot be merged"):
        merge([annotated([[]]), annotated([[]])])


def test_merged_files_get_their_folder_as_prefix(tmp_path: Path) -> None:
    for name, id in (("train2017", 1), ("val2017", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{id}.jpg").write_bytes(b"x")
        content = {"images": [{"id": id, "file_name": f"{id}.jpg", "labels": ["cat"]}]}
        write_json(tmp_path / "annotations" / f"instances_{name}.json", content)
    parts = [read_annotated(tmp_path / "annotations" / f"instances_{name}.json") for name in ("train2017", "val2017")]
    dataset, _ = merge(parts)
    assert [image.file for image in dataset.images] == ["train2017/1.jpg", "val2017/2.jpg"]
    assert all(dataset.path(index).is_file() for index in range(2))


ILSVRC_NAMES = ("zebra", "ant", "bee", "yak")


def ilsvrc(val: list[list[str]], train: list[list[str]]) -> Annotated:
    dataset, truth = annotated([[(name, False) for name in names] for names in (*val, *train)], names=ILSVRC_NAMES)
    files = [f"val/{i}.JPEG" for i in range(len(val))] + [f"train/{i}.JPEG" for i in range(len(train))]
    images = tuple(Image(image.id, file, image.size) for image, file in zip(dataset.images, files, strict=True))
    return Dataset(images, dataset.classes, dataset.tags, dataset.class_ids), truth


def test_ilsvrc100_is_alphabetical_and_adds_training_images() -> None:
    val = [["ant"], ["zebra"], ["ant", "yak"], ["bee"]]
    train = [["ant"]] * 5 + [["zebra", "bee"]] * 5 + [["yak"]] * 5
    split = split_ilsvrc100(ilsvrc(val, train), np.random.default_rng(0), val1={"0", "1"}, boxes_per_class=3)
    assert split.source[0].classes == ("ant", "bee")
    assert split.target[0].classes == ("zebra", "yak")
    used = {str(id) for part in (split.source, split.target) for id in ids(part)}
    files = {str(i + 1): name for i, name in enumerate([*val, *train])}
    for name in ILSVRC_NAMES:
        boxes = sum(files[id].count(name) for id in used)
        assert boxes >= 3, name
    assert sum("ant" in files[id] for id in used) == 3
    assert split.test is not None
    assert ids(split.test) == [3, 4]  # val2 whole, with or without a target class
    repeated = split_ilsvrc100(ilsvrc(val, train), np.random.default_rng(0), val1={"0", "1"}, boxes_per_class=3)
    assert ids(repeated.target) == ids(split.target)


def test_balanced_half() -> None:
    shows = np.zeros((40, 4), dtype=np.bool_)
    for label in range(4):
        shows[label * 10 : label * 10 + 10, label] = True
    half = _balanced_half(shows, np.random.default_rng(0))
    assert half.sum() == 20
    assert (np.abs(shows[half].sum(axis=0) - 5) <= 2).all()


def test_play_is_the_coco_protocol_one_level_down() -> None:
    names = ("person", "cat", "horse", "pizza")  # taught, target, playing, playing
    train = annotated(
        [
            [("person", False), ("cat", False)],  # 1: source; its cat is removed
            [("person", False), ("horse", False)],  # 2: source; its horse is removed
            [("horse", False), ("pizza", False)],  # 3: clean
            [("horse", False), ("cat", False)],  # 4: neither: a target class, and nothing taught
            [("cat", False)],  # 5: neither
        ],
        names=names,
    )
    val = annotated(
        [[("horse", False), ("person", False)], [("horse", False), ("cat", False)], [("person", False)]],
        first_id=11,
        names=names,
    )
    split = split_play(train, val)
    assert (ids(split.source), split.source[0].classes) == ([1, 2], ("person",))
    assert (ids(split.target), split.target[0].classes) == ([3, 11], ("horse", "pizza"))
    assert len(split.source[1]) == 2
    assert len(split.target[1]) == 3


@given(st.integers(0, 1000), st.integers(1, 6))
def test_coco40_draws_images_until_every_class_has_enough(seed: int, wanted: int) -> None:
    random = np.random.default_rng(seed)
    names = ("ant", "bee", "yak", "zebra")
    contents = [[(name, False) for name in names if random.random() < 0.4] for _ in range(30)]
    train, val = annotated(contents, names=names), annotated(contents[:5], first_id=100, names=names)
    split = split_coco40(train, val, np.random.default_rng(0), images_per_class=wanted)
    assert split.source[0].classes == ("ant", "bee")
    assert split.target[0].classes == ("yak", "zebra")
    for part in (split.source, split.target):
        for label, name in enumerate(part[0].classes):
            available = sum((name, False) in things for things in contents)
            assert len(part[0].positives[label]) >= min(wanted, available)
        assert len(part[0]) <= 2 * wanted  # an image is only drawn for a class that lacks some
    assert split.test is not None
    assert len(split.test[0]) == 5


def test_coco40_names_files_relative_to_the_folder_of_both_sets(tmp_path: Path) -> None:
    names = ("ant", "bee", "yak", "zebra")
    parts = []
    for first_id, folder in ((1, "train2017"), (11, "val2017")):
        dataset, truth = annotated([[("ant", False)], [("zebra", False)]], first_id=first_id, names=names)
        parts.append((replace(dataset, folder=tmp_path / folder), truth))
    split = split_coco40(parts[0], parts[1], np.random.default_rng(0))
    assert split.test is not None
    prefixes = [
        {image.file.split("/")[0] for image in part[0].images} for part in (split.source, split.target, split.test)
    ]
    assert prefixes == [{"train2017"}, {"train2017"}, {"val2017"}]
    assert {part[0].folder for part in (split.source, split.target, split.test)} == {tmp_path.resolve()}


def shown(part: Annotated) -> set[int | str]:
    return set(ids(part))


@given(st.lists(things, max_size=25), st.sets(st.integers(0, 3), min_size=1), st.integers(2, 12), st.integers(0, 9))
def test_playing_follows_the_rule_of_the_coco_protocol(
    contents: list[list[tuple[str, bool]]], playing: set[int], images: int, seed: int
) -> None:
    data, labels = annotated(contents), sorted(playing)
    split = split_playing(data, labels, images, np.random.default_rng(seed))
    others = {i + 1 for i, tags in enumerate(data[0].tags) if set(tags) - playing}
    plays = {i + 1 for i, tags in enumerate(data[0].tags) if set(tags) & playing}
    assert not shown(split.source) & shown(split.target)
    assert split.source[0].classes == tuple(name for label, name in enumerate(NAMES) if label not in playing)
    assert split.target[0].classes == tuple(NAMES[label] for label in labels)
    assert shown(split.source) <= others  # every image shows something that is taught
    assert others - shown(split.source) <= shown(split.target)
    for part in (split.source, split.target):  # of every image of a part, exactly the boxes of its classes are left
        expected = [name for id in ids(part) for name, _ in contents[int(id) - 1] if name in part[0].classes]
        assert sorted(part[0].classes[label] for label in part[1].label) == sorted(expected)
    tagged = [id for id, tags in zip(ids(split.target), split.target[0].tags, strict=True) if tags]
    untagged = shown(split.target) - set(tagged)
    assert split.cluttered.tolist() == [id in others for id in ids(split.target)]
    assert len(tagged) <= images
    assert sum(id not in others for id in tagged) <= images // 2
    assert sum(id in others for id in tagged) <= len(contents) // 5
    assert not untagged & plays
    assert len(untagged) <= (min(len(tagged), len(contents) // 5) if len(labels) == 1 else 0)
    again = split_playing(data, labels, images, np.random.default_rng(seed))
    assert (ids(again.source), ids(again.target)) == (ids(split.source), ids(split.target))


def test_playing_images_are_balanced_and_of_both_kinds() -> None:
    clean = [[("cat", False)]] * 60 + [[("bus", False)]] * 20
    cluttered = [[("cat", False), ("person", False)]] * 60 + [[("bus", False), ("hot dog", False)]] * 30
    data = annotated([*clean, *cluttered, *[[("person", False)]] * 30])
    split = split_playing(data, [1, 3], 40, np.random.default_rng(0))
    for kind in (split.cluttered, ~split.cluttered):
        tags = [split.target[0].tags[index] for index in np.flatnonzero(kind)]
        assert sorted(tags) == [(0,)] * 10 + [(1,)] * 10
    assert len(split.source[0]) == 120 - 20  # the clean images that do not play are no source images
    drawn = {tuple(ids(split_playing(data, [1, 3], 40, np.random.default_rng(seed)).target)) for seed in range(4)}
    assert len(drawn) == 4


def test_a_playing_class_alone_gets_images_without_it() -> None:
    data = annotated([[("cat", False)]] * 10 + [[("person", False)]] * 40)
    split = split_playing(data, [1], 20, np.random.default_rng(0))
    assert [len(tags) for tags in split.target[0].tags] == [1] * 10 + [0] * 8
    assert len(split.source[0]) == 32


def test_images_that_all_show_all_classes_are_cluttered() -> None:
    data = annotated([[(name, False) for name in NAMES]] * 20)
    split = split_playing(data, [0, 1], 100, np.random.default_rng(0))
    assert list(split.target[0].tags) == [(0, 1)] * 2  # two of each class
    assert split.cluttered.all()
    assert len(split.source[0]) == 18
    assert len(split.source[1]) == 36
