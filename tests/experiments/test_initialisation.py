import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pil

from helpers import planted_target
from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.experiments.initialisation import STARTS, study_init, write_study
from pairloc.localization.target import Target
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.settings import LearningSettings, TransferSettings


def test_every_start_is_there_and_icm_never_raises_the_energy(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=16)
    labels = torch.full((16, target.transfer.size), -1)
    labels[torch.arange(16), torch.from_numpy(shown)] = torch.arange(16) % 2
    transfer, _ = learn_transfer(target.transfer, Labels.of(labels), TransferSettings(steps=20, pairs=8))
    boxes = target.transfer.boxes[torch.arange(16), torch.from_numpy(shown)].double().numpy()
    truth = GroundTruth(np.arange(16), np.arange(16) % 2, boxes, np.zeros(16, dtype=np.bool_))
    dataset = target.transfer.store.dataset
    settings = LearningSettings(iterations=20)
    points = study_init(target, transfer, settings, (dataset, truth), epochs=2)
    assert [point.start for point in points] == [start for start in STARTS for _ in range(3)]
    for start in STARTS:
        energies = [point.energy for point in points if point.start == start]
        assert energies[0] >= energies[1] - 1e-6 >= energies[2] - 2e-6
    write_study(points, tmp_path / "out")
    with (tmp_path / "out" / "init.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(points)
    with Pil.open(tmp_path / "out" / "init.png") as picture:
        assert picture.width > 1000


def test_some_bags_are_measured_on_their_own_pictures(tmp_path: Path) -> None:
    whole, shown = planted_target(tmp_path / "s", classes=2, bags=16)
    some = [3, 4, 8, 9, 13, 14]
    bags = Bags(whole.transfer.store, "transfer", indices=some)
    target = Target.of(bags, bags)
    truth_boxes = bags.boxes[torch.arange(6), torch.from_numpy(shown[some])].double().numpy()
    truth = GroundTruth(np.arange(6), np.array(some) % 2, truth_boxes, np.zeros(6, dtype=np.bool_))
    labels = torch.full((16, whole.transfer.size), -1)
    labels[torch.arange(16), torch.from_numpy(shown)] = torch.arange(16) % 2
    transfer, _ = learn_transfer(whole.transfer, Labels.of(labels), TransferSettings(steps=20, pairs=8))
    dataset = whole.transfer.store.dataset.subset(some)
    points = study_init(target, transfer, LearningSettings(iterations=20), (dataset, truth), epochs=1)
    best = transfer.unary.of_class(bags.features(torch.arange(6))).masked_fill(~bags.valid, -torch.inf).argmax(dim=1)
    chosen = bags.boxes[torch.arange(6), best].double().numpy()
    right = np.array([iou(chosen[i : i + 1], truth_boxes[i : i + 1])[0, 0] > 0.5 for i in range(6)])
    expected = np.mean([right[np.array(some) % 2 == c].mean() for c in (0, 1)])
    start = next(point for point in points if point.start == "objectness" and point.epoch == 0)
    assert abs(start.corloc50 - expected) < 1e-9
    assert max(point.corloc50 for point in points) > 0
