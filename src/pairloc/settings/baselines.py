"""Settings of the methods that the paper compares with, one group each."""

from pathlib import Path

from pydantic import Field

from pairloc.settings.base import Fraction, Seed, Settings
from pairloc.settings.learning import FeatureSettings


class MiSvmSettings(Settings):
    """The baseline `mi-svm`: multiple instance learning with linear support vector machines (Uijlings et al.)."""

    rounds: int = Field(default=10, ge=0, le=100, description="Maximum number of rounds of training and selection.")
    folds: int = Field(
        default=4,
        ge=1,
        le=100,
        description="Number of folds; SVMs for one are trained on the others; 1 disables folds.",
    )
    objectness_weight: Fraction = Field(
        default=0.5, description="Weight of the proposer's objectness; the rest is the weight of the SVM."
    )
    features: FeatureSettings = FeatureSettings()
    seed: Seed = 0


class DeselaersSettings(Settings):
    """The baseline `deselaers`: a fully connected graph with cues of appearance and shape (Deselaers et al.)."""

    rounds: int = Field(default=3, ge=0, le=100, description="Number of times the cues are adapted to the class.")
    objectness: float = Field(
        default=1.0, ge=0, description="Weight, before adaptation to a class, of the objectness learned on the source."
    )
    appearance: float = Field(
        default=1.0, ge=0, description="Weight, before adaptation to a class, of the appearance learned from the boxes."
    )
    shape: float = Field(
        default=0.2,
        ge=0,
        description="Weight, before adaptation to a class, of the shape and size learned from the boxes.",
    )
    similar_appearance: float = Field(
        default=4.0,
        ge=0,
        description="Weight, before adaptation to a class, of the mean cosine with the boxes of other images.",
    )
    similar_shape: float = Field(
        default=0.2,
        ge=0,
        description="Weight, before adaptation to a class, of the mean squared difference of log aspect ratios.",
    )
    adapt: Fraction = Field(
        default=0.5, description="Weight of the cue weights learned for a class against the weights above."
    )
    k: int = Field(default=4, ge=2, le=1024, description="Number of bags in a mini-problem.")
    features: FeatureSettings = FeatureSettings(geometry=False)
    seed: Seed = 0


class LsdaSettings(Settings):
    """The baseline `lsda`: image classifiers become detectors (Hoffman et al.)."""

    neighbours: int = Field(
        default=5,
        ge=1,
        description="Number of nearest source classes; their changes from image to box classifier are averaged.",
    )


class TangSettings(Settings):
    """The baseline `tang`: as `lsda`, with visual and semantic similarity of classes (Tang et al.)."""

    neighbours: int = Field(default=10, ge=1, description="Number of most similar source classes that count.")
    visual: Fraction = Field(
        default=0.5, description="Weight of visual similarity; the rest is the weight of semantic similarity."
    )
    semantic_table: Path | None = Field(
        default=None, description="CSV file (target, source, similarity) to use instead of comparing names."
    )
