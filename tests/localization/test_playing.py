"""Learning on playing classes: the truth is read right, no class is judged by itself, and what is learned helps."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_scores, planted_store, planted_target, planted_truth, recipe
from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.localization import playing
from pairloc.localization.combination import Example, Weighing, fit_weighing
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
    played, learned = game
    marks: list[set[int]] = []
    fit = fit_weighing

    def marked(examples: list[Example], names: list[str]) -> Weighing | None:
        marks.append({int((example.overlap > 0.5).float().mean() * 1e6) for example in examples})
        return fit(examples, names)

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
