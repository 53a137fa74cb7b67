"""What is learned on the source: transfer scores, and the calibration of the confidence."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pairloc.localization.confidence import Calibration
from pairloc.localization.descent import Curve
from pairloc.localization.functions import TransferScores

TRANSFER, CALIBRATION = "transfer", "calibration"


@dataclass(frozen=True)
class Learned:
    """The class-generic part of the method, as stages write it and packaged weights contain it."""

    scores: TransferScores
    calibration: Calibration = field(default_factory=Calibration)
    curve: Curve | None = None  # training curve; None if it was loaded from disk

    def calibrated(self, calibration: Calibration) -> "Learned":
        """Return a copy with another calibration."""
        return replace(self, calibration=calibration)

    def to(self, device: str | torch.device) -> "Learned":
        """Move the scores to a device."""
        return replace(self, scores=self.scores.to(device))

    def save(self, folder: Path) -> None:
        """Write transfer scores and calibration to subfolders of a folder."""
        self.scores.save(folder / TRANSFER)
        self.calibration.save(folder / CALIBRATION)

    @classmethod
    def load(cls, folder: Path) -> "Learned":
        """Read transfer scores and calibration from a folder of weights or a run."""
        return cls(TransferScores.load(folder / TRANSFER), Calibration.load(folder / CALIBRATION))
