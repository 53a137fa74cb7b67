"""The engine: it finds planted objects, is deterministic, and resumes after any round."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_store, planted_truth, write_json
from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.errors import InputError
from pairloc.localization.alternate import Alternation, State
from pairloc.localization.checkpoint import STATE
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.known import KnownClasses
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS
from pairloc.localization.result import Localization
from pairloc.localization.sharing import Sharing
from pairloc.settings import LocalizationSettings, RunSettings, TransferSettings

SETTINGS = plain_settings(rounds=2, pairs={"kind": "cosine"})
Stores = tuple[BagStore, np.ndarray, Learned]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Return a target store, its planted proposals, and scores learned on a similar source."""
    folder = tmp_path_factory.mktemp("engine")
    source, seen = planted_store(folder / "source", bags=60, noise=0.4)
    learned = learn_source(source, planted_truth(source, seen), plain_transfer(pairs="cosine"))
    target, shown = planted_store(folder / "target", bags=36, noise=0.4)
    return target, shown, learned


def same(one: Localization, other: Localization) -> bool:
    """Return whether two results are identical to the byte."""
    arrays = all(
        getattr(one.boxes, name).tobytes() == getattr(other.boxes, name).tobytes()
        for name in ("image", "label", "boxes", "score")
    )
    return arrays and all(map(torch.equal, one.state.selection, other.state.selection))


def planted_boxes(store: BagStore, shown: np.ndarray) -> np.ndarray:
    return np.stack([store.bag(i).boxes[proposal] for i, proposal in enumerate(shown.tolist())]).astype(np.float64)


@pytest.mark.parametrize("method", ["warm-up", "full"])
def test_planted_objects_are_found(stores: Stores, method: str) -> None:
    store, shown, learned = stores
    found = localize_target(store, store.dataset, learned, SETTINGS, method=method)
    assert len(found.boxes) == len(store)
    hits = (found.boxes.boxes == planted_boxes(store, shown)[found.boxes.image]).all(axis=1)
    assert hits.mean() > 0.8
    assert [int(label) for label in found.boxes.label] == [store.dataset.tags[image][0] for image in found.boxes.image]


def test_the_recommended_settings_find_planted_objects(stores: Stores) -> None:
    """Exact unary scores, cosine scores, both features, geometry and voting; with fewer dimensions."""
    store, shown, _ = stores
    few = {"features": {"dimensions": 12}}
    source, seen = planted_store(store.path.parent / "other source", bags=60, noise=0.4)
    transfer = TransferSettings.model_validate(few | {"training": {"steps": 60, "pairs": 8, "lr": 0.01}})
    learned = learn_source(source, planted_truth(source, seen), transfer)
    found = localize_target(store, store.dataset, learned, LocalizationSettings.model_validate(few))
    correct = [
        int(found.state.selection[label][row]) == shown[bag]
        for label, bags in enumerate(found.positives)
        for row, bag in enumerate(bags.tolist())
    ]
    assert np.mean(correct) > 0.7


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_classifiers])
def test_the_same_call_gives_the_same_result(stores: Stores, method: str) -> None:
    store, _, learned = stores
    localization = plain_settings(rounds=1, boxes={"voting_iou": 0.4})
    own = {"features": localization.features}
    run = RunSettings.model_validate(
        {"data": {"scenes": {}}, "localization": localization, "mi_svm": own, "deselaers": own}
    )
    settings = METHODS[method].section(run)
    one, other = (localize_target(store, store.dataset, learned, settings, method=method) for _ in range(2))
    assert same(one, other)


def test_learning_again_gives_the_same_scores(tmp_path: Path) -> None:
    source, seen = planted_store(tmp_path / "s", bags=20)
    one, other = (learn_source(source, planted_truth(source, seen), plain_transfer(steps=10)) for _ in range(2))
    for name, tensor in one.scores.state_dict().items():
        assert torch.equal(tensor, other.scores.state_dict()[name])


class _StoppedError(Exception):
    """Stands for a killed process."""


def test_resuming_after_any_round_gives_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rough = plain_settings(rounds=3)
    store, shown = planted_store(tmp_path / "store", bags=45, noise=0.9)  # does not converge in the first rounds
    learned = learn_source(store, planted_truth(store, shown), plain_transfer())
    uninterrupted = localize_target(store, store.dataset, learned, rough, checkpoint=tmp_path / "whole")
    assert (tmp_path / "whole" / STATE).is_file()
    assert uninterrupted.n_iter == 3
    next_round = Alternation.round
    for rounds in range(uninterrupted.n_iter):

        def stop(self: Alternation, state: State, after: int = rounds) -> State:
            if state.n_iter >= after:
                raise _StoppedError
            return next_round(self, state)

        monkeypatch.setattr(Alternation, "round", stop)
        folder = tmp_path / str(rounds)
        with pytest.raises(_StoppedError):
            localize_target(store, store.dataset, learned, rough, checkpoint=folder)
        counted: list[int] = []

        def count(self: Alternation, state: State, seen: list[int] = counted) -> State:
            seen.append(state.n_iter)
            return next_round(self, state)

        monkeypatch.setattr(Alternation, "round", count)
        assert same(uninterrupted, localize_target(store, store.dataset, learned, rough, checkpoint=folder))
        assert counted == list(range(rounds, uninterrupted.n_iter))


def test_a_subset_of_a_store_can_be_localized(stores: Stores) -> None:
    store, _, learned = stores
    subset = list(range(0, 36, 2))
    tags = store.dataset.subset(subset)
    found = localize_target(store, tags, learned, plain_settings(rounds=0), method="warm-up-unary", indices=subset)
    every = localize_target(store, store.dataset, learned, plain_settings(rounds=0), method="warm-up-unary")
    row_of = {image: row for row, image in enumerate(every.boxes.image.tolist())}
    for image, box in zip(found.boxes.image.tolist(), found.boxes.boxes, strict=True):
        assert np.array_equal(box, every.boxes.boxes[row_of[subset[image]]])


def test_voting_moves_boxes_but_keeps_the_selection(stores: Stores) -> None:
    """With barely trained scores, because otherwise the selected proposals outvote all others."""
    store, shown, _ = stores
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=1))
    plain, voted = (
        localize_target(
            store, store.dataset, learned, plain_settings(rounds=0, boxes={"voting_iou": voting_iou}), method="warm-up"
        )
        for voting_iou in (0.0, 0.01)
    )
    assert all(map(torch.equal, plain.state.selection, voted.state.selection))
    assert np.array_equal(plain.boxes.score, voted.boxes.score)
    assert not np.array_equal(plain.boxes.boxes, voted.boxes.boxes)
    for row, image in enumerate(plain.boxes.image.tolist()):
        assert any(np.array_equal(plain.boxes.boxes[row], box) for box in store.bag(image).boxes.astype(np.float64))


def test_tags_that_share_a_box_lose_confidence_with_learned_evidence_alone(stores: Stores) -> None:
    """With weights of one term both tags of an image get its best box, so at most one of the two is right."""
    store, _, learned = stores
    tags = Dataset(store.dataset.images, store.dataset.classes, ((0, 1), *store.dataset.tags[1:]))
    weighing = Weighing(terms={"transfer score": (0.0, 1.0, 1.0)})
    weighed = replace(learned, combination=Combination(learned_on="", weighings=(weighing,)))
    confidences = {}
    for combination in ("mixed", "learned"):
        settings = plain_settings(rounds=0, unary={"combination": combination})
        found = localize_target(store, tags, weighed, settings, method="warm-up-unary")
        assert (
            found.boxes.boxes[found.boxes.image == 0].tolist()[0]
            == found.boxes.boxes[found.boxes.image == 0][1].tolist()
        )
        assert found.sharing == (Sharing(1, 1) if combination == "learned" else Sharing())
        confidences[combination] = found.boxes.score[found.boxes.image == 0]
    assert confidences["learned"].sum() <= 1
    assert (confidences["learned"] < confidences["mixed"]).all()


def test_a_tag_that_every_image_has_is_named_in_the_log(stores: Stores) -> None:
    """Its boxes are found without comparing with images that lack it; other weighings need no such images."""
    store, _, learned = stores
    weighing = Weighing(terms={"transfer score": (0.0, 1.0, 1.0)})
    weighed = replace(learned, combination=Combination(learned_on="", weighings=(weighing,)))
    settings, images = plain_settings(rounds=0, unary={"combination": "learned"}), store.dataset.images
    said: dict[str, list[str]] = {}
    for name, tags in (("alone", ((0,),) * len(images)), ("several", store.dataset.tags)):
        classes = ("key",) if name == "alone" else store.dataset.classes
        lines = said.setdefault(name, [])
        found = localize_target(store, Dataset(images, classes, tags), weighed, settings, log=lines.append)
        assert len(found.boxes) == len(images)
    (line,) = [line for line in said["alone"] if "every image" in line]
    assert line.startswith("every image has the tag key, so boxes are not compared with images that lack it")
    assert not [line for line in said["several"] if "every image" in line]


def test_invalid_arguments_are_reported(stores: Stores, tmp_path: Path) -> None:
    store, _, learned = stores
    with pytest.raises(InputError, match="there is no method 'best'"):
        localize_target(store, store.dataset, learned, SETTINGS, method="best")
    untagged = Dataset(store.dataset.images, store.dataset.classes, ((),) * len(store))
    with pytest.raises(InputError, match="no image of the target has a tag"):
        localize_target(store, untagged, learned, SETTINGS)
    write_json(tmp_path / STATE, {})
    with pytest.raises(InputError, match="cannot be resumed from"):
        localize_target(store, store.dataset, learned, SETTINGS, checkpoint=tmp_path)


@pytest.fixture(scope="module")
def knowing(stores: Stores) -> tuple[BagStore, Learned]:
    """Return a target, and learned scores with a proposer that knows two of its classes and one that is not there."""
    store, shown, learned = stores
    features = [store.bag(bag).transfer[proposal] for bag, proposal in enumerate(shown.tolist())]
    means = [
        np.mean([f for f, tags in zip(features, store.dataset.tags, strict=True) if tags == (c,)], 0) for c in (0, 2)
    ]
    weight = torch.tensor(np.stack([np.zeros_like(means[0]), *means, -means[0]]), dtype=torch.float32)
    names = ("Class 0", "class-2", "dog")
    plain_terms = {"transfer score": (0.0, 1.0, 0.2)}
    shared = plain_terms | {"known class": (-3.0, 1.0, -0.5), "doubt": (0.5, 0.5, 0.3)}
    own = shared | {"own class": (-3.0, 2.0, 10.0)}
    weighings = tuple(Weighing(terms=terms) for terms in (plain_terms, shared, own))
    combination = Combination(learned_on="", weighings=weighings)
    return store, replace(learned, combination=combination, known=KnownClasses(names, weight, torch.zeros(4)))


def localized(store: BagStore, learned: Learned, *, tags_as_new: bool) -> tuple[Localization, list[str]]:
    settings = plain_settings(rounds=0, unary={"combination": "learned", "tags_as_new": tags_as_new})
    lines: list[str] = []
    return localize_target(store, store.dataset, learned, settings, method="warm-up", log=lines.append), lines


def test_the_log_names_the_tags_that_are_known_classes(knowing: tuple[BagStore, Learned]) -> None:
    store, learned = knowing
    line = "2 tags are classes that the weights know: class 0; class 2 (class-2)"
    assert localized(store, learned, tags_as_new=False)[1].count(line) == 1
    quiet = (
        localized(store, learned, tags_as_new=True)[1],
        localized(store, replace(learned, known=None), tags_as_new=False)[1],
        localized(store, replace(learned, combination=None), tags_as_new=False)[1],
    )
    assert [line for lines in quiet for line in lines if "that the weights know:" in line] == []
    assert learned.known is not None
    one = replace(learned, known=replace(learned.known, names=("cat", "CLASS 2", "dog")))
    assert "1 tag is a class that the weights know: class 2" in localized(store, one, tags_as_new=False)[1]


def test_the_log_says_if_most_boxes_look_like_known_things(knowing: tuple[BagStore, Learned]) -> None:
    """All three are known by other names here; a tag that is the known class itself does not count."""
    store, learned = knowing
    assert learned.known is not None
    others = replace(learned, known=replace(learned.known, names=("person", "chair", "dog")))
    assert others.known is not None
    (line,) = [line for line in localized(store, others, tags_as_new=False)[1] if "look like" in line]
    found, boxes = map(int, line.split(" boxes")[0].split(" of "))
    assert boxes == len(store)
    assert boxes / 2 < found <= boxes
    assert "person" in line
    assert line.endswith("and may not show the tag; review them first")
    unsure = replace(learned, known=replace(others.known, weight=0 * others.known.weight))
    for quiet in (learned, replace(learned, known=None), unsure):
        assert not [line for line in localized(store, quiet, tags_as_new=False)[1] if "look like" in line]


def test_tags_as_new_restores_the_scores_of_weights_that_know_no_tag(knowing: tuple[BagStore, Learned]) -> None:
    """To the bit; a tag that is new anyway has the same scores either way."""
    store, learned = knowing
    assert learned.known is not None
    strange = replace(learned, known=replace(learned.known, names=("cat", "bird", "dog")))
    before, _ = localized(store, strange, tags_as_new=False)
    restored, _ = localized(store, learned, tags_as_new=True)
    assert same(before, restored)
    assert all(map(torch.equal, before.state.gaps, restored.state.gaps))
    known, _ = localized(store, learned, tags_as_new=False)
    changed = [not torch.equal(*pair) for pair in zip(before.state.gaps, known.state.gaps, strict=True)]
    assert changed == [True, False, True]


def test_a_known_tag_is_explained_by_its_own_class(knowing: tuple[BagStore, Learned]) -> None:
    store, learned = knowing
    known, new = (localized(store, learned, tags_as_new=tags_as_new)[0] for tags_as_new in (False, True))
    for image, label in zip(known.boxes.image.tolist(), known.boxes.label.tolist(), strict=True):
        name = store.dataset.classes[label]
        assert "own class" not in new.explain(image, name)
        if label == 1:
            assert known.explain(image, name) == new.explain(image, name)
        else:
            selected, other = known.explain(image, name)["own class"]
            assert selected > other, image


def test_weights_that_did_not_learn_to_use_known_tags_treat_them_as_new(knowing: tuple[BagStore, Learned]) -> None:
    """Such as weights from before: they take a class from the known ones only if it speaks for the tag instead."""
    store, learned = knowing
    assert learned.combination is not None
    plain_terms, shared, _ = learned.combination.weighings
    before = replace(learned, combination=Combination(learned_on="", weighings=(plain_terms, shared)))
    (one, lines), (other, quiet) = (localized(store, before, tags_as_new=tags_as_new) for tags_as_new in (False, True))
    assert same(one, other)
    assert all(map(torch.equal, one.state.gaps, other.state.gaps))
    assert [line for line in lines + quiet if "that the weights know:" in line] == []
