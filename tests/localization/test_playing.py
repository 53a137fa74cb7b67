"""Learning on playing classes: the truth is read right, no class is judged by itself, and what is learned helps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_scores, planted_store, planted_target, planted_truth, recipe
from pairloc.boxes import iou
from pairloc.datasets.names import known_class
from pairloc.errors import InputError
from pairloc.localization import playing
from pairloc.localization.combination import Example, Weighing, fit_weighing
from pairloc.localization.known import KnownClasses
from pairloc.localization.learned import Learned
from pairloc.localization.playing import Game, learn_evidence

SETTINGS = plain_settings(
    folds=2,
    rounds=1,
    features={"kind": "class"},
    unary={"combination": "learned", "fit": "exact"},
    energy={"lambda1": 1.0},
)


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> tuple[Game, Learned]:
    store, shown = planted_store(tmp_path_factory.mktemp("g") / "store", classes=8, bags=160, d=24, noise=1.2)
    target, _ = planted_target(tmp_path_factory.mktemp("t") / "store", classes=8, bags=160, d=24, noise=1.2)
    learned = Learned(planted_scores(target, shown, plain_transfer(pairs="cosine")).requires_grad_(False))
    return Game.of(store, planted_truth(store, shown), learned, SETTINGS), learned


def test_the_overlap_is_that_with_the_nearest_object_of_the_class(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=3, bags=12)
    dataset, truth = planted_truth(store, shown)
    target, _ = planted_target(tmp_path / "t", classes=3, bags=12)
    order = np.random.default_rng(0).permutation(len(truth))  # the annotations list the images in another order
    learned = Learned(planted_scores(target, shown, plain_transfer(steps=2)))
    made = Game.of(store, (dataset, truth.where(order >= 0)), learned, SETTINGS)
    for label, overlap in enumerate(made.overlap):
        for row, bag in enumerate(made.target.positives[label].tolist()):
            proposals = made.target.bags.boxes[bag].double().numpy()
            expected = iou(proposals, truth.boxes[(truth.image == bag) & (truth.label == label)])[:, 0]
            np.testing.assert_allclose(overlap[row].numpy(), expected, atol=1e-6)


def test_no_class_is_judged_by_weights_that_were_learned_on_it(
    game: tuple[Game, Learned], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each class marks its examples; a weighing remembers the marks that it was fitted to."""
    played, _ = game
    marks: list[set[int]] = []
    fit = fit_weighing

    def marked(examples: list[Example], names: list[str], *, products: bool) -> Weighing | None:
        marks.append({int((example.overlap > 0.5).float().mean() * 1e6) for example in examples})
        return fit(examples, names, products=products)

    monkeypatch.setattr(playing, "fit_weighing", marked)
    judges = {}
    original = playing._judges

    def spied(parts: list[list[str]], weighings: object) -> object:
        for held in parts:
            judges[tuple(held)] = len(marks)
            weighings(held)  # type: ignore[operator]
        return original(parts, weighings)  # type: ignore[arg-type]

    monkeypatch.setattr(playing, "_judges", spied)
    learn_evidence([played], SETTINGS)
    names = played.target.classes
    assert sorted(name for held in judges for name in held) == sorted(names)
    assert all(len(held) < len(names) for held in judges)
    entries = playing._played(played, SETTINGS)
    for held in judges:
        assert {entry.name for entry in playing._without(entries, list(held))} == set(names) - set(held)


def test_what_is_learned_finds_more_than_the_transfer_scores_alone(game: tuple[Game, Learned]) -> None:
    """On the playing classes themselves, so this only shows that terms, weights and loop fit together."""
    played, learned = game
    combination, calibration = learn_evidence([played], SETTINGS)
    assert calibration.signals
    taught = Learned(learned.scores, calibration, combination=combination)
    right = []
    for known, kind, method in ((taught, "learned", "full"), (learned, "mixed", "warm-up-unary")):
        settings = plain_settings(
            folds=2, rounds=1, unary={"combination": kind, "fit": "exact"}, energy={"lambda1": 1.0}
        )
        outcome = recipe(method, played.target, known, settings)
        hits = [
            overlap.gather(1, selection[:, None])[:, 0] > 0.5
            for overlap, selection in zip(played.overlap, outcome.state.selection, strict=True)
        ]
        right.append(float(torch.cat(hits).float().mean()))
        if kind == "learned":
            confidence, hit = torch.cat(outcome.confidence), torch.cat(hits)
            assert float(confidence[hit].mean()) > float(confidence[~hit].mean())
            assert float(confidence.mean()) == pytest.approx(float(hit.double().mean()), abs=0.15)
    assert right[0] > right[1]


def test_objects_that_no_proposal_overlaps_teach_nothing(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=3, bags=12)
    target, _ = planted_target(tmp_path / "t", classes=3, bags=12)
    dataset, truth = planted_truth(store, shown)
    learned = Learned(planted_scores(target, shown, plain_transfer(steps=2)))
    none = truth.where(np.zeros(len(truth), dtype=np.bool_))
    with pytest.raises(InputError, match="overlap no object"):
        learn_evidence([Game.of(store, (dataset, none), learned, SETTINGS)], SETTINGS)


@pytest.fixture(scope="module")
def mixed(game: tuple[Game, Learned]) -> Game:
    """Return a game in which the proposer was taught three of the eight classes, and one that is not there."""
    played, learned = game
    store = played.target.bags.store
    features = np.stack([store.bag(bag).transfer[:, :] for bag in range(160)]).astype(np.float32)  # (N, B, d)
    best = [overlap.argmax(dim=1).numpy() for overlap in played.overlap]
    means = [features[bags.numpy(), best[label]].mean(axis=0) for label, bags in enumerate(played.target.positives)]
    weight = np.stack([np.zeros(24), means[0], means[3], means[6], -means[0]]).astype(np.float32)
    known = KnownClasses(("class 0", "class_3", "Class 6", "dog"), torch.from_numpy(weight), torch.zeros(5))
    knowing = replace(learned, known=known)
    probabilities = known.probabilities(played.target.bags)
    own = tuple(known_class(name, known.names) for name in played.target.classes)
    assert [label for label, index in enumerate(own) if index is not None] == [0, 3, 6]
    return Game(replace(played.target, known=probabilities, own=own), played.overlap, knowing)


def test_known_tags_teach_the_weights_of_known_tags_and_new_ones_those_of_new_tags(mixed: Game) -> None:
    entries = playing._played(mixed, SETTINGS)
    known, new = ([entry for entry in entries if (entry.view.own is not None) == kind] for kind in (True, False))
    assert (len(known), len(new)) == (3, 5)
    together, of_known, of_new = (
        playing._weighings(some, playing._MISSING, with_classes=False) for some in (entries, known, new)
    )
    assert sum("own class" in weighing.terms for weighing in together) == len(of_known) == 3
    assert [weighing for weighing in together if "own class" in weighing.terms] == list(of_known)
    assert [weighing for weighing in together if "own class" not in weighing.terms] == list(of_new)
    assert len(of_new) == 6
    assert len({frozenset(weighing.terms) for weighing in together}) == 9


def test_the_own_class_of_a_known_tag_is_learned_to_speak_for_it(mixed: Game) -> None:
    combination, _ = learn_evidence([mixed], SETTINGS)
    entries = {entry.name: entry.terms for entry in playing._played(mixed, SETTINGS)}
    for with_classes in ((), ("class score", "other tag")):
        used = combination.weighing((*entries["class 3"].names, *with_classes))
        assert used is not None
        assert used.terms["own class"][2] > 0.5
        assert set(used.terms) == {*entries["class 3"].names, *with_classes}
        other = combination.weighing((*entries["class 1"].names, *with_classes))
        assert other is not None
        assert set(other.terms) == set(used.terms) - {"own class"}


def test_without_known_tags_there_is_nothing_to_learn_about_them(game: tuple[Game, Learned]) -> None:
    played, _ = game
    combination, _ = learn_evidence([played], SETTINGS)
    assert len(combination.weighings) == 12
    assert all("own class" not in weighing.terms for weighing in combination.weighings)
    assert not combination.weighs("own class")


def test_the_only_known_tag_is_judged_by_the_weights_of_new_tags(game: tuple[Game, Learned], tmp_path: Path) -> None:
    """While it is held out no known tag teaches, and the new tags of the other game have terms that it lacks."""
    played, learned = game
    store, shown = planted_store(tmp_path / "s", classes=1, bags=20, d=24, noise=1.2)
    alone = Game.of(store, planted_truth(store, shown), learned, SETTINGS)
    probabilities = torch.rand(20, alone.target.bags.size, 2, generator=torch.Generator().manual_seed(0))
    known = replace(alone, target=replace(alone.target, classes=("dog",), known=probabilities, own=(1,)))
    combination, _ = learn_evidence([known, played], SETTINGS)
    assert sum("own class" in weighing.terms for weighing in combination.weighings) == 6
