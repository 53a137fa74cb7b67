"""The target: positive bags, selectable proposals and folds."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain, planted_store, planted_target
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.localization.known import KnownClasses
from pairloc.localization.target import Target, fold_of_bags

Planted = tuple[Target, np.ndarray, TransferScores]


def test_every_class_is_spread_over_the_folds(planted: Planted) -> None:
    target, _, _ = planted
    fold = fold_of_bags(target, 4, 0)
    assert set(fold.tolist()) == {0, 1, 2, 3}
    for bags in target.positives:
        counts = torch.bincount(fold[bags], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_selectable_proposals_cover_at_most_max_area(planted: Planted) -> None:
    target, _, _ = planted
    bags = target.bags
    all_bags = torch.arange(bags.count)
    assert torch.equal(target.selectable(all_bags, 1.0), bags.valid)
    limit = float(bags.area[bags.valid].median())
    selectable = target.selectable(all_bags, limit)
    small = bags.valid & (bags.area <= limit)
    assert torch.equal(selectable[small.any(dim=1)], small[small.any(dim=1)])
    too_small = float(bags.area[bags.valid].min()) / 2
    assert torch.equal(target.selectable(all_bags, too_small), bags.valid)  # every bag keeps a selectable proposal
    assert torch.equal(target.selectable(torch.tensor([7, 3]), limit), selectable[[7, 3]])


def test_the_positives_of_a_class_are_its_tagged_bags(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=6)
    assert [bags.tolist() for bags in target.positives] == [[0, 2, 4], [1, 3, 5]]
    assert target.tagged.int().tolist() == [[1, 0], [0, 1]] * 3
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    for label, bags in enumerate(target.positives):
        expected = torch.stack([target.bags.boxes[bag, shown[bag]] for bag in bags.tolist()])
        assert torch.equal(target.selected_boxes(selection, label), expected)
        assert torch.equal(target.boxes(label), target.bags.boxes[bags])


def test_class_features_are_read_lazily_and_once(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    read: list[Bags] = []

    def reading() -> Bags:
        read.append(Bags(store, plain("class")))
        return read[-1]

    target = Target.of(Bags(store, plain("transfer")), reading, store.dataset)
    assert not read
    assert target.class_bags is target.class_bags
    assert len(read) == 1


def test_a_target_that_is_sent_elsewhere_brings_its_features_along(tmp_path: Path) -> None:
    target, _ = planted_target(tmp_path / "s", bags=6)
    sent = pickle.dumps(target)
    shutil.rmtree(tmp_path / "s")  # as on a machine that does not see the files
    there = pickle.loads(sent)
    rows = torch.arange(6)
    assert torch.equal(there.class_bags.features(rows), target.class_bags.features(rows))
    assert torch.equal(there.bags.features(rows), target.bags.features(rows))


def test_a_target_without_tags_is_refused(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    none = Dataset(store.dataset.images, store.dataset.classes, ((),) * len(store))
    with pytest.raises(InputError, match="no image of the target has a tag"):
        Target.of(bags, lambda: bags, none)


def known_classes(*names: str, d: int = 12) -> KnownClasses:
    generator = torch.Generator().manual_seed(0)
    return KnownClasses(names, torch.randn(len(names) + 1, d, generator=generator), torch.zeros(len(names) + 1))


def test_a_tag_is_a_known_class_by_name_unless_all_are_new(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")  # class 0, class 1, class 2
    bags = Bags(store, plain("transfer"))
    known = known_classes("dog", "Class-2", "class 0")
    made = Target.of(bags, lambda: bags, store.dataset, known)
    assert made.own == (2, None, 1)
    new = Target.of(bags, lambda: bags, store.dataset, known, tags_as_new=True)
    assert new.own == ()
    assert made.known is not None
    assert new.known is not None
    assert torch.equal(made.known, new.known)


def test_without_known_classes_no_tag_is_known(tmp_path: Path) -> None:
    """A class-agnostic proposer names none, and the layer of another network does not fit imported features."""
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, plain("transfer"))
    for known in (None, known_classes("class 0", "class 1", d=7)):
        made = Target.of(bags, lambda: bags, store.dataset, known)
        assert made.known is None
        assert made.own == ()
