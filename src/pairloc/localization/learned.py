"""What is learned on the source: transfer scores, the combination of evidence, the confidence, and classifiers."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pairloc.localization.baselines.source_classifiers import WEIGHTS as CLASSIFIER_WEIGHTS
from pairloc.localization.baselines.source_classifiers import SourceClassifiers
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.descent import Curve
from pairloc.localization.functions import TransferScores
from pairloc.localization.known import KnownClasses

TRANSFER, CALIBRATION, CLASSIFIERS, EVIDENCE = "transfer", "calibration", "classifiers", "evidence"


@dataclass(frozen=True)
class Learned:
    """The class-generic part of the method, as stages write it and packaged weights contain it."""

    scores: TransferScores
    calibration: Calibration = field(default_factory=Calibration)
    curve: Curve | None = None  # training curve; None if it was loaded from disk
    classifiers: SourceClassifiers | None = None  # of the source classes, for the baselines that transfer them
    combination: Combination | None = None  # how much each evidence term counts; None if it was never learned
    known: KnownClasses | None = None  # what the proposer recognises by name

    def calibrated(self, calibration: Calibration) -> "Learned":
        """Return a copy with another calibration."""
        return replace(self, calibration=calibration)

    def to(self, device: str | torch.device) -> "Learned":
        """Move everything to a device."""
        classifiers = None if self.classifiers is None else self.classifiers.to(device)
        known = None if self.known is None else self.known.to(device)
        return replace(self, scores=self.scores.to(device), classifiers=classifiers, known=known)

    def save(self, folder: Path) -> None:
        """Write everything but the known classes, which belong to the proposer, to subfolders of a folder."""
        self.scores.save(folder / TRANSFER)
        self.calibration.save(folder / CALIBRATION)
        if self.classifiers is not None:
            self.classifiers.save(folder / CLASSIFIERS)
        if self.combination is not None:
            self.combination.save(folder / EVIDENCE)

    @classmethod
    def load(cls, folder: Path) -> "Learned":
        """Read what a folder of weights or a run contains."""
        has_classifiers = (folder / CLASSIFIERS / CLASSIFIER_WEIGHTS).is_file()
        classifiers = SourceClassifiers.load(folder / CLASSIFIERS) if has_classifiers else None
        scores, calibration = TransferScores.load(folder / TRANSFER), Calibration.load(folder / CALIBRATION)
        combination, known = Combination.load(folder / EVIDENCE), KnownClasses.load(folder / "proposer")
        return cls(scores, calibration, classifiers=classifiers, combination=combination, known=known)
