"""Settings of snapping."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from pairloc.settings.base import NO_EFFECT, Fraction, Settings, Workers


class SnapSettings(Settings):
    """The method `snapped`: it moves the boxes of `full` or `fine-tuned` to the edges of masks."""

    weights: Annotated[
        Path | None,
        Field(description="File of the segmenter's weights; by default that of the installed distribution."),
        NO_EFFECT,  # there is one official file
    ] = None
    min_iou: Fraction = Field(
        default=0.4, description="Minimum IoU of a box with the box of its mask; with a lower one the box stays."
    )
    masks: bool = Field(default=False, description="Also write the masks, as COCO segmentations.")
    workers: Workers = 0
