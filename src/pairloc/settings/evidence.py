"""Settings of learning how much each piece of evidence counts."""

from pathlib import Path

from pydantic import Field

from pairloc.settings.base import Seed, Settings


class EvidenceSettings(Settings):
    """Learning evidence: source classes play the target for a second proposer that was not taught them."""

    classes: int = Field(
        default=17, ge=1, description="Maximum number of classes that play the target together; at most a third does."
    )
    draws: int = Field(
        default=1, ge=1, le=100, description="Number of draws of playing classes; a proposer is trained for each."
    )
    images: int = Field(default=3000, ge=2, description="Maximum number of images of the playing classes in a draw.")
    weights: Path | None = Field(
        default=None,
        description="Weights (a folder, or coco63) never taught some source classes; these play, none are trained.",
    )
    seed: Seed = 0
