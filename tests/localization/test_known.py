"""Known classes: their probabilities are those of the proposer itself."""

from pathlib import Path

import pytest
import torch

from helpers import TINY, planted_target
from pairloc.detector.model import Proposer, build
from pairloc.errors import InputError
from pairloc.localization.known import KnownClasses


@pytest.fixture
def proposer(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    names = ("cat", "dog", "cup")
    model = build(TINY.model_copy(update={"pretrained": False, "head": 12}), len(names))
    Proposer(model, TINY.model_copy(update={"head": 12}), names).save(tmp_path / "proposer")
    return tmp_path / "proposer"


@torch.no_grad()
def test_the_probabilities_are_those_of_the_network(proposer: Path, tmp_path: Path) -> None:
    target, _ = planted_target(tmp_path / "s", bags=9, d=12)
    known = KnownClasses.load(proposer)
    assert known is not None
    assert known.names == ("cat", "dog", "cup")
    found = known.probabilities(target.bags)
    assert found is not None
    layer = Proposer.load(proposer).model.roi_heads.box_predictor.cls_score
    for bag in range(9):
        features = torch.from_numpy(target.bags.store.bag(bag).transfer.copy()).float()
        expected = layer(features).softmax(dim=1)[:, 1:]
        torch.testing.assert_close(found[bag, : len(features)].float(), expected, atol=2e-3, rtol=0)
        assert (found[bag, len(features) :] == 0).all()


def test_imported_features_have_no_known_classes(proposer: Path, tmp_path: Path) -> None:
    target, _ = planted_target(tmp_path / "s", bags=9, d=7)
    known = KnownClasses.load(proposer)
    assert known is not None
    assert known.probabilities(target.bags) is None


def test_a_class_agnostic_proposer_knows_no_classes_and_a_damaged_one_is_refused(
    proposer: Path, tmp_path: Path
) -> None:
    assert KnownClasses.load(tmp_path / "nothing") is None
    agnostic = TINY.model_copy(update={"pretrained": False, "class_agnostic": True})
    Proposer(build(agnostic, 3), agnostic, ("a", "b", "c")).save(tmp_path / "agnostic")
    assert KnownClasses.load(tmp_path / "agnostic") is None
    file = proposer / "proposer.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="does not hold a proposer"):
        KnownClasses.load(proposer)
