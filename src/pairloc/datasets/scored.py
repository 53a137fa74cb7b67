"""Boxes that a program found: a selection or a detector's output, with the score of every box."""

from dataclasses import dataclass

from pairloc.boxes import Bools, Floats, Ints


@dataclass(frozen=True)
class ScoredBoxes:
    """Found boxes of a `Dataset`, in columns of n boxes."""

    image: Ints  # (n,) index into Dataset.images
    label: Ints  # (n,) index into Dataset.classes
    boxes: Floats  # (n, 4) x1, y1, x2, y2
    score: Floats  # (n,) NaN where the file has none

    def __post_init__(self) -> None:
        n = len(self.image)
        if not (self.label.shape == self.score.shape == (n,) and self.boxes.shape == (n, 4)):
            raise ValueError("image, label and score are (n,), boxes is (n, 4)")

    def __len__(self) -> int:
        return len(self.image)

    def where(self, mask: Bools) -> "ScoredBoxes":
        """The boxes a mask (n,) keeps."""
        return ScoredBoxes(self.image[mask], self.label[mask], self.boxes[mask], self.score[mask])
