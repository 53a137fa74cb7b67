"""Settings of the alternating loop on the target."""

from typing import Literal

from pydantic import Field, model_validator

from pairloc.settings.base import Fraction, Seed, Settings
from pairloc.settings.learning import FeatureSettings, PairSettings, TrainingSettings


class EnergySettings(Settings):
    """The energy that re-localization minimises (paper, eq. reloc_full_opt), and how scores are mixed."""

    alpha: float = Field(default=1.0, ge=0, description="Weight of the pair scores; 0 disables them.")
    alpha_scale: Literal["none", "per_bag"] = Field(
        default="per_bag", description="`per_bag` averages the pair scores over the other bags; `none` sums them."
    )
    lambda1: Fraction = Field(
        default=1.0, description="Weight of the transfer scores in the pair scores; 1 trains no class pair scores."
    )
    lambda2: Fraction = Field(
        default=0.5, description="Weight of the transfer scores in the unary scores; 1 trains no class unary scores."
    )
    max_compared_bags: int = Field(
        default=1024, ge=0, description="Maximum size of the random groups of bags that are compared; 0 compares all."
    )

    @property
    def trains_unary(self) -> bool:
        """Whether class unary scores have any weight."""
        return self.lambda2 < 1

    @property
    def trains_pairs(self) -> bool:
        """Whether class pair scores have any weight."""
        return self.alpha > 0 and self.lambda1 < 1

    def without_pairs(self) -> "EnergySettings":
        """Return a copy without pair scores."""
        return self.model_copy(update={"alpha": 0.0})


class SolverSettings(Settings):
    """Algorithm 1 of the paper: mini-problems, then ICM."""

    name: str = Field(
        default="trws",
        description="Solver of the mini-problems: trws, exact, a-star, bp, mean-field, block-icm, icm, unary, random.",
    )
    k: int = Field(default=4, ge=2, le=1024, description="Number of bags in a mini-problem.")
    iterations: int = Field(default=100, ge=1, description="Maximum number of iterations of the solver.")
    epochs: int = Field(default=10, ge=0, description="Maximum number of passes of ICM over the bags.")


class ClassUnarySettings(Settings):
    """The unary of a class: the fit of its class scores, and the evidence added to them."""

    combination: Literal["learned", "mixed"] = Field(
        default="learned",
        description="`learned` weighs all evidence as on playing classes; `mixed` is the paper's sum (lambda2).",
    )
    fit: Literal["sampled", "exact"] = Field(
        default="exact",
        description="`sampled` trains on sampled proposals; `exact` fits a logistic regression to all of them.",
    )
    decay: float = Field(default=0.1, gt=0, description="Weight decay of the exact fit.")
    trust: float = Field(
        default=2.0,
        ge=0,
        description="Weight of a box in the exact fit: its probability to this power; 0 trusts all boxes equally.",
    )
    other_tag_weight: float = Field(
        default=1.0, ge=0, description="Weight of the boxes of other tags as negative examples in the exact fit."
    )
    area_penalty: float = Field(
        default=3.0, ge=0, description="Penalty per fraction of the image that a proposal covers beyond one half."
    )
    max_area: float = Field(default=0.9, gt=0, le=1, description="Maximum fraction of the image that a box may cover.")
    tags_as_new: bool = Field(
        default=False, description="Treat tags that the weights know by name as new; with learned evidence only."
    )


class ClassTrainingSettings(TrainingSettings):
    """Re-training: which proposals are foreground, and how bags are paired."""

    foreground_iou: float = Field(
        default=0.6, gt=0, le=1, description="Minimum IoU with the selected box for a proposal to be foreground."
    )
    warm_start: bool = Field(
        default=False, description="Start re-training from the class scores of the previous round (the paper)."
    )
    negatives: Fraction = Field(default=0.5, description="Fraction of the pairs whose second bag lacks the tag.")


class BoxSettings(Settings):
    """Refinement of the selected proposals to boxes."""

    voting_iou: float = Field(
        default=0.4, ge=0, lt=1, description="Average proposals whose IoU with the box is at least this; 0 disables it."
    )


class LocalizationSettings(Settings):
    """Warm-up, then re-training and re-localization in turn (paper, sections 4 and 4.2)."""

    rounds: int = Field(default=1, ge=0, le=100, description="Maximum number of re-trainings and re-localizations.")
    folds: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Number of folds; scores for one are trained on the others; 1 disables folds.",
    )
    safeguard: bool = Field(
        default=False, description="Discard a re-training that does not lower the objective; needs folds = 1."
    )
    exclusion_iou: float = Field(
        default=0.4, gt=0, le=1, description="Maximum IoU of the boxes of two tags of one image; 1 lets them share one."
    )
    energy: EnergySettings = EnergySettings()
    solver: SolverSettings = SolverSettings()
    features: FeatureSettings = FeatureSettings()
    unary: ClassUnarySettings = ClassUnarySettings()
    pairs: PairSettings = PairSettings()
    training: ClassTrainingSettings = ClassTrainingSettings()
    boxes: BoxSettings = BoxSettings()
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_objective(self) -> "LocalizationSettings":
        if self.safeguard and self.folds > 1:
            raise ValueError("safeguard needs folds = 1: folds have no common objective")
        if self.safeguard and self.energy.max_compared_bags:
            raise ValueError(
                "safeguard needs energy.max_compared_bags = 0: a group does not have the objective of its class"
            )
        return self
