"""Predicted boxes with scores: a selection, or the output of a detector."""

from dataclasses import dataclass

from pairloc.boxes import Bools, Floats, Ints


@dataclass(frozen=True)
class ScoredBoxes:
    """The n predicted boxes of a `Dataset`, as columns.

    Attributes
    ----------
    image : (n,) index of the image of every box
    label : (n,) index of its class
    boxes : (n, 4) corners x1, y1, x2, y2 in pixels of the image
    score : (n,) its score or confidence; NaN if it has none

    Examples
    --------
    >>> boxes = ScoredBoxes(np.array([0]), np.array([2]), np.array([[1.0, 2.0, 30.0, 40.0]]), np.array([0.9]))
    >>> len(boxes.where(boxes.score > 0.5))
    1
    """

    image: Ints  # (n,) index into Dataset.images
    label: Ints  # (n,) index into Dataset.classes
    boxes: Floats  # (n, 4) x1, y1, x2, y2
    score: Floats  # (n,) NaN for a box without a score

    def __post_init__(self) -> None:
        n = len(self.image)
        if not (self.label.shape == self.score.shape == (n,) and self.boxes.shape == (n, 4)):
            raise ValueError("image, label and score must have shape (n,), boxes (n, 4)")

    def __len__(self) -> int:
        return len(self.image)

    def where(self, mask: Bools) -> "ScoredBoxes":
        """The boxes selected by a mask (n,)."""
        return ScoredBoxes(self.image[mask], self.label[mask], self.boxes[mask], self.score[mask])
