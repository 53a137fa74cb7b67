"""What a source taught: transfer scores, and the curve that turns signs into confidence."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pairloc.localization.confidence import Calibration
from pairloc.localization.descent import Curve
from pairloc.localization.functions import TransferScores

TRANSFER, CALIBRATION = "transfer", "calibration"


@dataclass(frozen=True)
class Learned:
    """The class-generic side of the method, as a stage writes it and weights bring it."""

    scores: TransferScores
    calibration: Calibration = field(default_factory=Calibration)
    curve: Curve | None = None  # how the loss fell

    def calibrated(self, calibration: Calibration) -> "Learned":
        """The same with another curve of confidence."""
        return replace(self, calibration=calibration)

    def to(self, device: str | torch.device) -> "Learned":
        """The same on a device."""
        return replace(self, scores=self.scores.to(device))

    def save(self, folder: Path) -> None:
        """Write it below a folder of weights."""
        self.scores.save(folder / TRANSFER)
        self.calibration.save(folder / CALIBRATION)

    @classmethod
    def load(cls, folder: Path) -> "Learned":
        """Read it from a folder of weights, or from a run."""
        return cls(TransferScores.load(folder / TRANSFER), Calibration.load(folder / CALIBRATION))
