"""What is learned on the source: transfer scores, the calibration of the confidence, and classifiers for baselines."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pairloc.localization.baselines.source_classifiers import WEIGHTS as CLASSIFIER_WEIGHTS
from pairloc.localization.baselines.source_classifiers import SourceClassifiers
from pairloc.localization.confidence import Calibration
from pairloc.localization.descent import Curve
from pairloc.localization.functions import TransferScores

TRANSFER, CALIBRATION, CLASSIFIERS = "transfer", "calibration", "classifiers"


@dataclass(frozen=True)
class Learned:
    """The class-generic part of the method, as stages write it and packaged weights contain it."""

    scores: TransferScores
    calibration: Calibration = field(default_factory=Calibration)
    curve: Curve | None = None  # training curve; None if it was loaded from disk
    classifiers: SourceClassifiers | None = None  # of the source classes, for the baselines that transfer them

    def calibrated(self, calibration: Calibration) -> "Learned":
        """Return a copy with another calibration."""
        return replace(self, calibration=calibration)

    def to(self, device: str | torch.device) -> "Learned":
        """Move scores and classifiers to a device."""
        classifiers = None if self.classifiers is None else self.classifiers.to(device)
        return replace(self, scores=self.scores.to(device), classifiers=classifiers)

    def save(self, folder: Path) -> None:
        """Write transfer scores, calibration and, if there are any, classifiers to subfolders of a folder."""
        self.scores.save(folder / TRANSFER)
        self.calibration.save(folder / CALIBRATION)
        if self.classifiers is not None:
            self.classifiers.save(folder / CLASSIFIERS)

    @classmethod
    def load(cls, folder: Path) -> "Learned":
        """Read transfer scores, calibration and, if there are any, classifiers from a folder of weights or a run."""
        has_classifiers = (folder / CLASSIFIERS / CLASSIFIER_WEIGHTS).is_file()
        classifiers = SourceClassifiers.load(folder / CLASSIFIERS) if has_classifiers else None
        scores, calibration = TransferScores.load(folder / TRANSFER), Calibration.load(folder / CALIBRATION)
        return cls(scores, calibration, classifiers=classifiers)
