from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain, planted_store
from pairloc.bags.reduction import Reduction
from pairloc.bags.tensors import Bags, _area
from pairloc.errors import InputError
from pairloc.settings import FeatureSettings


def test_cached_and_uncached_features_are_the_same(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    cached, uncached = Bags(store, plain("both"), memory=1 << 30), Bags(store, plain("both"), memory=0)
    rows, proposals = torch.tensor([3, 0, 17]), torch.tensor([[0, 2], [5, 5], [1, 3]])
    torch.testing.assert_close(cached.features(rows), uncached.features(rows))
    torch.testing.assert_close(cached.chosen(rows, proposals), uncached.chosen(rows, proposals))
    torch.testing.assert_close(cached.chosen(rows, proposals)[1, 0], cached.features(rows)[1, 5])


def test_the_reduction_is_applied_to_the_features_of_the_store(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, FeatureSettings(kind="transfer", dimensions=4, geometry=False))
    raw = torch.from_numpy(np.array(store.bag(11).transfer)).float()
    expected = (raw - bags.reduction.mean) @ bags.reduction.matrix
    torch.testing.assert_close(bags.features(torch.tensor([11]))[0, : len(raw)], expected)
    assert bags.d == 4


def test_indices_select_bags_of_a_store(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    subset, full = Bags(store, plain("class"), indices=[5, 2]), Bags(store, plain("class"))
    torch.testing.assert_close(subset.boxes, full.boxes[[5, 2]])
    reduced = Bags(store, plain("class"), indices=[5, 2], reduction=full.reduction)
    torch.testing.assert_close(reduced.features(torch.tensor([1, 0])), full.features(torch.tensor([2, 5])))
    assert subset.sizes == [(100, 100)] * 2


def test_reduction_keeps_the_principal_components() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(500, 3, generator=generator)
    features = hidden @ torch.randn(3, 20, generator=generator) + 7
    reduction = Reduction.fit(features, 3)
    reduced = reduction(features)
    assert reduced.shape == (500, 3)
    torch.testing.assert_close(reduced.mean(dim=0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(reduced.pow(2).mean(), torch.tensor(1.0), atol=1e-2, rtol=0)
    back = torch.linalg.lstsq(reduced, features - features.mean(dim=0))
    torch.testing.assert_close(reduced @ back.solution, features - features.mean(dim=0), atol=1e-2, rtol=0)


def test_without_reduction_each_dimension_has_unit_variance() -> None:
    features = torch.randn(400, 5, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 10, 0.1, 3, 0])
    reduced = Reduction.fit(features, 0)(features)
    torch.testing.assert_close(reduced[:, :4].std(dim=0), torch.ones(4), atol=0.01, rtol=0)
    assert torch.isfinite(reduced).all()


def test_area_is_the_fraction_of_the_image(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    width, height = store.bag(4).size
    x1, y1, x2, y2 = store.bag(4).boxes[2].tolist()
    assert abs(float(bags.area[4, 2]) - (x2 - x1) * (y2 - y1) / (width * height)) < 1e-6


def test_area_is_zero_if_the_image_size_is_unknown() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 8.0, 8.0]], [[0.0, 0.0, 8.0, 8.0]]])
    assert _area(boxes, torch.tensor([[16.0, 8.0], [0.0, 0.0]]))[:, 0].tolist() == [0.5, 0.0]


def test_features_of_another_extractor_are_refused(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    learned = Bags(store, FeatureSettings(kind="both", dimensions=4)).reduction
    with pytest.raises(InputError, match="extract with the same class_features"):
        Bags(store, plain("transfer"), reduction=learned)


def test_both_kinds_of_features_are_concatenated(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    one, other, both = (Bags(store, plain(kind)).features(torch.tensor([3])) for kind in ("transfer", "class", "both"))
    torch.testing.assert_close(both, torch.cat([one, other], dim=2))


def test_the_seed_affects_only_the_reduction(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s", bags=600, proposals=2)
    features = FeatureSettings(kind="transfer", dimensions=4, geometry=False)
    one, same, other = (Bags(store, features, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.reduction.matrix, same.reduction.matrix)
    assert not torch.equal(one.reduction.matrix, other.reduction.matrix)
    assert torch.equal(one.boxes, other.boxes)
