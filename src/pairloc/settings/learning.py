"""Settings of the score functions learned on the source."""

from typing import Literal

from pydantic import Field, model_validator

from pairloc.settings.base import Iou, Seed, Settings


class FeatureSettings(Settings):
    """Features of a proposal that a score function uses."""

    kind: Literal["transfer", "class", "both"] = Field(
        default="both", description="`transfer`: the proposer's box head; `class`: the independent network; `both`."
    )
    dimensions: int = Field(
        default=256, ge=0, le=8192, description="Number of principal components to keep; 0 keeps all features."
    )
    geometry: bool = Field(default=True, description="Append position, size and objectness of the box to the features.")


class TrainingSettings(Settings):
    """Stochastic gradient descent on pairs of bags, with early stopping on held-out bags."""

    steps: int = Field(default=1500, ge=1, le=10_000_000, description="Maximum number of steps.")
    pairs: int = Field(default=32, ge=1, le=65536, description="Number of pairs of bags per step.")
    optimizer: Literal["adamw", "sgd"] = Field(
        default="adamw", description="Optimizer; the paper uses sgd, which needs a learning rate of about 0.01."
    )
    lr: float = Field(default=2e-3, gt=0, le=10, description="Initial learning rate; it decays to zero along a cosine.")
    foreground: int = Field(default=3, ge=1, le=100, description="Foreground proposals sampled per bag (paper: 3).")
    background: int = Field(default=7, ge=1, le=1000, description="Background proposals sampled per bag (paper: 7).")
    held_out: float = Field(default=0.1, ge=0, lt=1, description="Fraction of the bags held out for early stopping.")


class TransferUnarySettings(Settings):
    """The class-generic unary score."""

    fit: Literal["sampled", "exact"] = Field(
        default="exact",
        description="`sampled` trains on sampled proposals; `exact` fits a logistic regression to all of them.",
    )
    decay: float = Field(default=1e-3, gt=0, description="Weight decay of the exact fit.")
    tight_iou: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="The labels of the exact fit rise from 0 at background_iou to 1 at this IoU.",
    )


class PairSettings(Settings):
    """The pair score."""

    kind: str = Field(default="cosine", description="Name of the pair score: relation (the paper's network) or cosine.")


class TransferSettings(Settings):
    """The class-generic score functions, learned on the source (paper, eq. source_loss)."""

    images: int = Field(default=5000, ge=2, description="Maximum number of source images to learn from.")
    foreground_iou: Iou = Field(default=0.65, description="Minimum IoU with a box for a proposal to show its class.")
    background_iou: Iou = Field(default=0.5, description="Proposals with a lower IoU with every box are background.")
    features: FeatureSettings = FeatureSettings(dimensions=512)
    unary: TransferUnarySettings = TransferUnarySettings()
    pairs: PairSettings = PairSettings()
    training: TrainingSettings = TrainingSettings(steps=600, pairs=64)
    same_class: float = Field(default=0.5, gt=0, lt=1, description="Fraction of the pairs of bags that share a class.")
    seed: Seed = 0

    @model_validator(mode="after")
    def _ordered(self) -> "TransferSettings":
        if self.background_iou > self.foreground_iou:
            raise ValueError(
                "background_iou is above foreground_iou: a proposal would be both foreground and background"
            )
        if self.background_iou >= self.unary.tight_iou:
            raise ValueError("background_iou is not below unary.tight_iou: no proposal would have an IoU in between")
        return self
