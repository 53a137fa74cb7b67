from pathlib import Path

import torch

from helpers import planted_store
from pairloc.bags.geometry import GEOMETRY, geometry
from pairloc.bags.tensors import Bags
from pairloc.settings import FeatureSettings


def test_geometry_does_not_depend_on_the_size_of_the_image() -> None:
    boxes = torch.tensor([[[0.0, 10, 50, 100], [20, 20, 40, 60]]])
    objectness = torch.tensor([[1.0, -2.0]])
    small = geometry(boxes, torch.tensor([[100, 100]]), objectness)
    torch.testing.assert_close(small, geometry(boxes * 7, torch.tensor([[700, 700]]), objectness))
    assert small.shape == (1, 2, GEOMETRY)
    assert small[0, 0, 5:9].tolist() == [1, 0, 0, 1]  # touches the left and bottom border
    assert small[0, 1, 5:9].sum() == 0


def test_geometry_is_appended_to_cached_and_uncached_features(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    features = FeatureSettings(kind="transfer", dimensions=4, geometry=True)
    cached, uncached = Bags(store, features), Bags(store, features, memory=0)
    assert cached.d == 4 + GEOMETRY
    rows = torch.tensor([5, 2])
    torch.testing.assert_close(cached.features(rows), uncached.features(rows))
    sizes = torch.full((2, 2), 100)
    expected = geometry(cached.boxes[rows], sizes, cached.objectness[rows])
    torch.testing.assert_close(cached.features(rows)[..., 4:], expected)
