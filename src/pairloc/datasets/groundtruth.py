"""Boxes of annotated data sets.

A type of its own, apart from `Dataset`: the target side sees tags alone. Readers and splits, the proposer, transfer
training, the supervised detector, evaluation and the report may import this module; a test forbids the others.
"""

from dataclasses import dataclass

import numpy as np

from pairloc.boxes import Bools, Floats, Ints


@dataclass(frozen=True)
class GroundTruth:
    """The annotated boxes of a `Dataset`, in columns of n boxes."""

    image: Ints  # (n,) index into Dataset.images
    label: Ints  # (n,) index into Dataset.classes
    boxes: Floats  # (n, 4) x1, y1, x2, y2
    ignored: Bools  # (n,) boxes that do not count: COCO's crowds, VOC's difficult objects

    def __post_init__(self) -> None:
        n = len(self.image)
        if not (self.label.shape == self.ignored.shape == (n,) and self.boxes.shape == (n, 4)):
            raise ValueError("image, label and ignored are (n,), boxes is (n, 4)")

    def __len__(self) -> int:
        return len(self.image)

    def of_image(self, index: int) -> "GroundTruth":
        """The boxes of one image."""
        return self.where(self.image == index)

    def where(self, mask: Bools) -> "GroundTruth":
        """The boxes a mask (n,) keeps."""
        return GroundTruth(self.image[mask], self.label[mask], self.boxes[mask], self.ignored[mask])

    def relabelled(self, image: Ints, label: Ints) -> "GroundTruth":
        """The same boxes under new indices: image (old images,) and label (old classes,), -1 where a box goes."""
        new_image, new_label = image[self.image], label[self.label]
        kept = (new_image >= 0) & (new_label >= 0)
        return GroundTruth(
            new_image[kept].astype(np.int64),
            new_label[kept].astype(np.int64),
            self.boxes[kept],
            self.ignored[kept],
        )
