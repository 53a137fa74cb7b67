from pathlib import Path

import numpy as np
import pytest

from helpers import coco, write_json
from pairloc.bags.importing import import_bags
from pairloc.bags.store import BagStore
from pairloc.errors import InputError
from pairloc.formats import read


def result(**changes: object) -> dict[str, object]:
    return {"image_id": 1, "category_id": 5, "bbox": [1, 2, 3, 4], "score": 0.5} | changes


def test_results_of_any_detector_become_bags(tmp_path: Path) -> None:
    data = read(write_json(tmp_path / "x.json", coco()))
    results = [result(score=0.2), result(score=0.9, bbox=[5, 5, 2, 2]), result(score=0.5), result(image_id=2)]
    write_json(tmp_path / "r.json", results)
    np.save(tmp_path / "f.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    kept = import_bags(data, tmp_path / "r.json", tmp_path / "s", features=tmp_path / "f.npy", count=2)
    store = BagStore(tmp_path / "s")
    assert kept == 3
    first = store.bag(0)
    np.testing.assert_array_equal(first.boxes, [[5, 5, 7, 7], [1, 2, 4, 6]])
    np.testing.assert_array_equal(first.transfer, [[2, 3], [4, 5]])
    np.testing.assert_allclose(first.objectness, [np.log(9), 0], rtol=1e-4, atol=1e-6)
    assert store.verify() == []


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"a": 1}, "not a list of boxes"),
        ([3], r"\[0\]: is 3"),
        ([result(image_id=9)], r"\[0\]: image_id is 9"),
        ([result(), result(bbox=[1, 2, 3])], r"\[1\]: bbox is \[1, 2, 3\]"),
        ([result(score=float("nan"))], "five finite numbers"),
        ([result(bbox=[1, 2, 0, 3])], "has no area"),
    ],
)
def test_an_invalid_result_is_named_by_its_index(tmp_path: Path, results: object, message: str) -> None:
    data = read(write_json(tmp_path / "x.json", coco()))
    with pytest.raises(InputError, match=message):
        import_bags(data, write_json(tmp_path / "r.json", results), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_features_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    data = read(write_json(tmp_path / "x.json", coco()))
    write_json(tmp_path / "r.json", [result()])
    np.save(tmp_path / "f.npy", np.zeros((3, 2)))
    (tmp_path / "g.npy").write_bytes(b"no")
    for name, message in (("f.npy", r"shape \(3, 2\)"), ("g.npy", "is not an .npy array")):
        with pytest.raises(InputError, match=message):
            import_bags(data, tmp_path / "r.json", tmp_path / "s", features=tmp_path / name)
