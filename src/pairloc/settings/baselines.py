"""Settings of the methods that the paper compares with, one group each."""

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
