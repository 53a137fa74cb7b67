"""Ground-truth boxes of annotated data sets.

They are kept out of `Dataset`, so that code for the target sees tags only. Readers and splits, the proposer, transfer
training, the supervised detector, evaluation and the report may import this module; a test forbids all others.
"""

from dataclasses import dataclass

import numpy as np

from pairloc.boxes import Bools, Floats, Ints


@dataclass(frozen=True)
class GroundTruth:
    """The n ground-truth boxes of a `Dataset`, as columns."""

    image: Ints  # (n,) index into Dataset.images
    label: Ints  # (n,) index into Dataset.classes
    boxes: Floats  # (n, 4) x1, y1, x2, y2
    ignored: Bools  # (n,) boxes that do not count: crowds in COCO, difficult objects in VOC

    def __post_init__(self) -> None:
        n = len(self.image)
        if not (self.label.shape == self.ignored.shape == (n,) and self.boxes.shape == (n, 4)):
            raise ValueError("image, label and ignored must have shape (n,), boxes (n, 4)")

    def __len__(self) -> int:
        return len(self.image)

    def of_image(self, index: int) -> "GroundTruth":
        """The boxes of one image."""
        return self.where(self.image == index)

    def where(self, mask: Bools) -> "GroundTruth":
        """The boxes selected by a mask (n,)."""
        return GroundTruth(self.image[mask], self.label[mask], self.boxes[mask], self.ignored[mask])

    def relabelled(self, image: Ints, label: Ints) -> "GroundTruth":
        """The same boxes under new indices; boxes whose new image or label is -1 are dropped.

        `image` (old images,) and `label` (old classes,) map old indices to new ones.
        """
        new_image, new_label = image[self.image], label[self.label]
        kept = (new_image >= 0) & (new_label >= 0)
        return GroundTruth(
            new_image[kept].astype(np.int64),
            new_label[kept].astype(np.int64),
            self.boxes[kept],
            self.ignored[kept],
        )
