from pathlib import Path

import numpy as np
import pytest

from helpers import write_ilsvrc
from pairloc.errors import InputError
from pairloc.formats import read
from pairloc.formats.ilsvrc import read_ilsvrc
from pairloc.formats.reading import read_annotated


def test_synsets_become_words_and_corners_are_zero_based(tmp_path: Path) -> None:
    dataset, truth = read_annotated(write_ilsvrc(tmp_path))
    assert sorted(dataset.classes) == ["hot dog", "zebra"]
    assert len(dataset) == 4
    np.testing.assert_array_equal(truth.boxes[0], [0, 0, 10, 20])


def test_an_image_set_refers_to_the_folder_of_its_name(tmp_path: Path) -> None:
    write_ilsvrc(tmp_path)
    dataset = read(tmp_path / "ImageSets/DET/val.txt")
    assert [image.file for image in dataset.images] == [f"val/ILSVRC2013_val_0000000{i}.jpeg" for i in (1, 2)]
    assert [dataset.names(index) for index in range(2)] == [("hot dog",), ("zebra",)]


def test_an_image_without_xml_is_a_negative(tmp_path: Path) -> None:
    write_ilsvrc(tmp_path)
    listing = tmp_path / "ImageSets/DET/train_1.txt"
    listing.write_text("train/ILSVRC2013_train/n01/n01_1 1\ntrain/other/negative -1\n")
    assert read(listing).tags == ((0,), ())


def test_without_a_map_synsets_stay_and_the_protocol_is_rejected(tmp_path: Path) -> None:
    write_ilsvrc(tmp_path)
    (tmp_path / "map_det.txt").unlink()
    assert sorted(read(tmp_path).classes) == ["n01", "n02"]
    with pytest.raises(InputError, match="pass it with --names"):
        read_ilsvrc(tmp_path)


def test_another_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Annotations/DET"):
        read(tmp_path, "ilsvrc")
