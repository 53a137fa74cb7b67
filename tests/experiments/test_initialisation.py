"""The initialisation study: it measures every start, ICM never raises the energy, CorLoc uses the right images."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from helpers import plain_settings, planted_scores, planted_store, planted_target, planted_truth
from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.experiments.initialisation import STARTS, InitialisationStudy, write_study
from pairloc.inference import ClassProblem, PairTable
from pairloc.inference.full_graph import class_block_icm
from pairloc.localization.learned import Learned
from runs.calling import call

SETTINGS = plain_settings(features={"kind": "transfer"}, solver={"iterations": 20})


def test_every_start_is_measured_and_icm_never_raises_the_energy(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=16)
    learned = Learned(planted_scores(target, shown))
    store = target.bags.store
    _, truth = planted_truth(store, shown)
    lines: list[str] = []
    points = InitialisationStudy(store, store.dataset, truth, learned, SETTINGS, log=lines.append).starts(epochs=2)
    assert len(lines) == len(points)
    assert [(point.start, point.epoch) for point in points] == [(start, e) for start in STARTS for e in range(3)]
    for start in STARTS:
        energies = [point.energy for point in points if point.start == start]
        assert energies[0] >= energies[1] - 1e-6 >= energies[2] - 2e-6
        seconds = [point.seconds for point in points if point.start == start]
        assert seconds == sorted(seconds)
    assert all(0 <= point.corloc70 <= point.corloc50 <= 1 for point in points)
    assert max(point.corloc50 for point in points) > 0.8  # the planted objects are found
    write_study(points, tmp_path / "out")
    with (tmp_path / "out" / "init.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(points)
    with Pil.open(tmp_path / "out" / "init.png") as image:
        assert image.width > 1000


def test_a_subset_of_the_bags_is_measured_on_its_images(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=2, bags=16)
    target, _ = planted_target(tmp_path / "t", classes=2, bags=16)
    transfer = planted_scores(target, shown)
    subset = [3, 4, 8, 9, 13, 14]
    dataset, truth = planted_truth(store, shown)
    new_index = np.full(16, -1)
    new_index[subset] = np.arange(6)
    subset_truth = truth.relabelled(new_index, np.arange(2))
    points = InitialisationStudy(
        store, dataset.subset(subset), subset_truth, Learned(transfer), SETTINGS, indices=subset
    ).starts(epochs=1)
    bags = Bags(store, SETTINGS.features, indices=subset)
    features = bags.features(torch.arange(6))
    best = transfer.unary.of_class(features).masked_fill(~bags.valid, -torch.inf).argmax(dim=1)
    chosen = bags.boxes[torch.arange(6), best].double().numpy()
    correct = np.array([iou(chosen[i : i + 1], subset_truth.of_image(i).boxes)[0, 0] > 0.5 for i in range(6)])
    expected = np.mean([correct[np.array(subset) % 2 == c].mean() for c in (0, 1)])
    start = next(point for point in points if point.start == "objectness" and point.epoch == 0)
    assert abs(start.corloc50 - expected) < 1e-9
    assert max(point.corloc50 for point in points) > 0


def test_the_whole_image_start_is_the_proposal_nearest_to_the_frame(tmp_path: Path) -> None:
    """Its first point has the energy and the CorLoc of a loop over the images."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=16)
    store = target.bags.store
    _, truth = planted_truth(store, shown)
    study = InitialisationStudy(store, store.dataset, truth, Learned(planted_scores(target, shown)), SETTINGS)
    point = next(point for point in study.starts(epochs=1) if (point.start, point.epoch) == ("whole image", 0))
    energy, per_class = 0.0, []
    for label, bags in enumerate(target.positives):
        selection, right = [], []
        for bag in bags.tolist():
            boxes = store.bag(bag).boxes.astype(np.float64).tolist()
            overlap = [(x2 - x1) * (y2 - y1) / 100**2 for x1, y1, x2, y2 in boxes]  # IoU with the frame
            selection.append(int(np.argmax(overlap)))
            right.append(selection[-1] == shown[bag])
        problem = study.problems[label]
        assert problem is not None
        energy += problem.energy(selection)
        per_class.append(np.mean(right))
    assert point.energy == pytest.approx(energy, rel=1e-5)
    assert point.corloc70 == pytest.approx(np.mean(per_class))


def test_the_curves_of_the_whole_graph_are_those_of_the_algorithms(tmp_path: Path) -> None:
    """Both kinds of ICM start from the selection of the mini-problems; the time of the start counts for both."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=24)
    store = target.bags.store
    _, truth = planted_truth(store, shown)
    study = InitialisationStudy(store, store.dataset, truth, Learned(planted_scores(target, shown)), SETTINGS)
    generator = torch.Generator().manual_seed(0)
    for label in range(2):  # random scores, on which the algorithms go different ways
        table = torch.randn(12, 12, 6, 6, generator=generator, dtype=torch.float64)
        study.problems[label] = ClassProblem(torch.zeros(12, 6, dtype=torch.float64), PairTable(table))
    points = study.full_graph(12, epochs=3)
    curves = {name: [point for point in points if point.start == name] for name in ("ICM", "block ICM")}
    icm, block = [0.0] * 4, [0.0] * 4
    for label, problem in enumerate(study.problems):
        assert problem is not None
        solution = problem.solve(k=SETTINGS.solver.k, seed=SETTINGS.seed + label, iterations=20, epochs=3)
        for total, steps in (
            (icm, solution.history),
            (block, class_block_icm(problem, solution.history[0].selection, 3)),
        ):
            for epoch in range(4):
                total[epoch] += steps[min(epoch, len(steps) - 1)].energy
    assert [point.energy for point in curves["ICM"]] == pytest.approx(icm)
    assert [point.energy for point in curves["block ICM"]] == pytest.approx(block)
    assert icm[0] > icm[-1]  # the start is not yet the end
    assert icm != block
    assert curves["block ICM"][0].seconds >= curves["ICM"][0].seconds


def test_other_algorithms_are_measured_on_the_classes_that_are_small_enough(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=15)  # classes of 8 and 7 bags
    store = target.bags.store
    _, truth = planted_truth(store, shown)
    study = InitialisationStudy(store, store.dataset, truth, Learned(planted_scores(target, shown)), SETTINGS)
    assert study.full_graph(most=6) == []
    for most, bags in ((7, 7), (8, 15)):
        points = study.full_graph(most, epochs=3)
        assert {point.start for point in points} == {"ICM", "block ICM", "mean field"}
        start = next(point for point in points if point.start == "ICM" and point.epoch == 0)
        block_start = next(point for point in points if point.start == "block ICM" and point.epoch == 0)
        assert block_start.energy == pytest.approx(start.energy, rel=1e-5)
        problems = [problem for problem in study.problems if problem is not None and len(problem) <= most]
        assert sum(map(len, problems)) == bags
        assert points[-1].energy >= min(point.energy for point in points)


def test_the_command_line_studies_a_run(finished_run: Path, tmp_path: Path) -> None:
    done = call("study", "init", finished_run, "--out", tmp_path / "study", "--images", 6, "--full-graph", 10)
    assert (tmp_path / "study" / "full-graph.csv").is_file()
    assert done.status == 0, done.text
    with (tmp_path / "study" / "init.csv").open() as stream:
        assert {row["start"] for row in csv.DictReader(stream)} == set(STARTS)
