"""Localization, the result of the engine: a box and a confidence for every tag, and the history of the loop."""

import html
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairloc.boxes import Floats, to_xywh
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.coco import to_coco
from pairloc.localization.alternate import HalfStep, State
from pairloc.localization.descent import Curve
from pairloc.localization.explanation import Explanation
from pairloc.localization.outcome import Outcome
from pairloc.localization.sharing import Sharing
from pairloc.localization.target import Target

_SHOWN = 20  # maximum number of rows in the table for notebooks


@dataclass(frozen=True)
class FoundBox:
    """The box of one tag of one image.

    Attributes
    ----------
    tag : name of the class
    box : x1, y1, x2, y2 in pixels from the upper left corner of the image as it is shown; x2 and y2 are exclusive
    confidence : estimated probability that the box is right, between 0 and 1

    Examples
    --------
    >>> FoundBox("cat", (10.0, 20.0, 110.0, 220.0), 0.8).confidence
    0.8
    """

    tag: str
    box: tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels
    confidence: float


@dataclass(frozen=True)
class FoundImage:
    """The boxes of one image of a `Localization`.

    Attributes
    ----------
    file : path of the image, relative to the folder of the data set
    size : width and height in pixels; None if the image could not be read
    boxes : one `FoundBox` per tag

    Examples
    --------
    >>> FoundImage("a.jpg", (640, 480), (FoundBox("cat", (10.0, 20.0, 110.0, 220.0), 0.8),)).boxes[0].tag
    'cat'
    """

    file: str
    size: tuple[int, int] | None  # width, height
    boxes: tuple[FoundBox, ...]


@dataclass(frozen=True)
class Localization:
    """The result of localizing: a box for every tag of every image that could be read.

    `len` is the number of images; iterating yields a `FoundImage` for each. In a notebook it is shown as a table.

    Attributes
    ----------
    dataset : images, classes and tags
    boxes : one row per tag, with the confidence as its score
    history : one entry per re-training and re-localization
    converged : whether the last round changed no selection
    n_iter : number of completed rounds
    unreadable : one message per image that could not be read
    sharing : in how many images two tags share a box, which lowers their confidence; counted with learned evidence

    Examples
    --------
    >>> found = Localizer.load("runs/mine").localize(["images/a.jpg", "images/b.jpg"], ["key", "key"])
    >>> for image in found:
    ...     for box in image.boxes:
    ...         print(image.file, box.tag)
    a.jpg key
    b.jpg key
    >>> sorted(found.to_coco())
    ['annotations', 'categories', 'images', 'info', 'licenses']
    """

    dataset: Dataset
    boxes: ScoredBoxes
    state: State = field(repr=False)
    positives: tuple[Tensor, ...] = field(repr=False)  # for every class (M,): its bags
    proposals: Tensor = field(repr=False)  # (N, B, 4)
    scores: tuple[Tensor, ...] = field(repr=False)  # for every class (M, B): all proposals, other bags fixed
    agreement: tuple[Tensor, ...] = field(repr=False)  # for every class (M,)
    explanations: tuple[Explanation | None, ...] = field(default=(), repr=False)
    unreadable: tuple[str, ...] = ()
    sharing: Sharing = field(default_factory=Sharing)

    @classmethod
    def of(
        cls,
        tags: Dataset,
        target: Target,
        outcome: Outcome,
        boxes: tuple[Tensor, ...],
        sharing: Sharing,
    ) -> "Localization":
        """Build the result from the outcome of a method and its refined boxes, (M, 4) for every class."""
        found = scored_boxes(target.positives, boxes, outcome.confidence)
        sizes = target.bags.sizes
        images = tuple(
            image if image.size is not None or not sizes[row][0] else Image(image.id, image.file, sizes[row])
            for row, image in enumerate(tags.images)
        )
        dataset = Dataset(images, tags.classes, tags.tags, tags.class_ids, tags.folder)
        scores = tuple(entry.cpu() for entry in outcome.scores)
        unreadable = tuple(target.bags.store.unreadable)
        return cls(
            dataset,
            found,
            outcome.state,
            target.positives,
            target.bags.boxes.cpu(),
            scores,
            outcome.agreement,
            outcome.explanations,
            unreadable,
            sharing,
        )

    @property
    def is_explained(self) -> bool:
        """Whether the boxes were selected by learned evidence."""
        return any(explanation is not None for explanation in self.explanations)

    @property
    def history(self) -> tuple[HalfStep, ...]:
        """One entry per re-training and re-localization."""
        return self.state.history

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The training curve of every re-training."""
        return self.state.curves

    @property
    def converged(self) -> bool:
        """Whether the last round changed no selection."""
        return self.state.converged

    @property
    def n_iter(self) -> int:
        """Number of completed rounds."""
        return self.state.n_iter

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[FoundImage]:
        order = np.argsort(self.boxes.image, kind="stable")
        starts = np.searchsorted(self.boxes.image[order], np.arange(len(self) + 1))
        for index, image in enumerate(self.dataset.images):
            rows = order[starts[index] : starts[index + 1]].tolist()
            yield FoundImage(image.file, image.size, tuple(self._found_box(row) for row in rows))

    def _found_box(self, row: int) -> FoundBox:
        x1, y1, x2, y2 = self.boxes.boxes[row].tolist()
        return FoundBox(self.dataset.classes[self.boxes.label[row]], (x1, y1, x2, y2), float(self.boxes.score[row]))

    def confident(self, least: float) -> "Localization":
        """Return the result with only those boxes whose confidence is at least `least`.

        Images and tags stay, and so does what `alternatives` and `explain` say about every tag.

        Parameters
        ----------
        least : between 0 and 1

        Returns
        -------
        found : Localization with fewer boxes

        Raises
        ------
        InputError : `least` is not between 0 and 1

        Examples
        --------
        >>> sure = found.confident(0.5)
        >>> len(sure) == len(found), len(sure.boxes) <= len(found.boxes)
        (True, True)
        """
        if not 0 <= least <= 1:
            raise InputError(f"the least confidence is {shown(least)}; it must be between 0 and 1")
        return replace(self, boxes=self.boxes.where(self.boxes.score >= least))

    def alternatives(self, image: int, tag: str, count: int = 5) -> tuple[Floats, Floats]:
        """Return the best candidate boxes of an image for a tag.

        Parameters
        ----------
        image : index of the image
        tag : one of its tags
        count : maximum number of candidates

        Returns
        -------
        boxes : (n, 4) corners x1, y1, x2, y2, best first
        scores : (n,) comparable within the image only

        Raises
        ------
        InputError : there is no such image, or it has no candidates for the tag

        Examples
        --------
        >>> boxes, scores = found.alternatives(0, "key", count=3)
        >>> boxes.shape
        (3, 4)
        """
        label, row = self._row(image, tag)
        scores = self.scores[label][row]
        best, proposals = scores.topk(min(count, int(torch.isfinite(scores).sum())))
        return self.proposals[image, proposals].double().numpy(), best.double().numpy()

    def explain(self, image: int, tag: str) -> dict[str, tuple[float, float]]:
        """Say why a box was selected: what each piece of evidence adds to its score.

        Parameters
        ----------
        image : index of the image
        tag : one of its tags

        Returns
        -------
        parts : for every evidence term its part of the score of the selected box, and of the best box elsewhere in the
            image; the term with the largest difference first

        Raises
        ------
        InputError : there is no such image or tag, or the evidence was not learned (`unary.combination = "mixed"`)

        Examples
        --------
        >>> parts = found.explain(0, "key")
        >>> selected, other = parts["transfer score"]
        """
        label, row = self._row(image, tag)
        explanation = self.explanations[label] if self.explanations else None
        if explanation is None:
            raise InputError("these boxes were selected without learned evidence, so there is nothing to explain")
        columns = zip(
            explanation.names, explanation.selected[row].tolist(), explanation.other[row].tolist(), strict=True
        )
        parts = {name: (selected, other) for name, selected, other in columns}
        return dict(sorted(parts.items(), key=lambda part: -abs(part[1][0] - part[1][1])))

    def _row(self, image: int, tag: str) -> tuple[int, int]:
        """Return the class of a tag and the row of an image in it; raise an InputError if there is none."""
        if tag not in self.dataset.classes or not 0 <= image < len(self):
            raise InputError(f"this result has no image {image} or no tag {tag!r}; it has {len(self)} images")
        label = self.dataset.classes.index(tag)
        rows = torch.nonzero(self.positives[label] == image)[:, 0]
        if not len(rows):
            raise InputError(f"image {image} has no proposals for the tag {tag!r}")
        return label, int(rows[0])

    def to_coco(self) -> dict[str, object]:
        """Return the content of a COCO file, with image sizes and scores.

        Returns
        -------
        content : dictionary with `images`, `annotations` and `categories`, ready for `json.dump`
        """
        found = self.boxes
        return to_coco(
            self.dataset, found.image, found.label, found.boxes, score=found.score, description="boxes found by pairloc"
        )

    def to_pandas(self) -> Any:
        """Return the boxes as a table.

        Returns
        -------
        table : pandas.DataFrame with one row per box and the columns image, tag, x1, y1, x2, y2, confidence

        Raises
        ------
        InputError : pandas is not installed
        """
        pandas = _installed("pandas")
        rows = [(image.file, found.tag, *found.box, found.confidence) for image in self for found in image.boxes]
        return pandas.DataFrame(rows, columns=["image", "tag", "x1", "y1", "x2", "y2", "confidence"])

    def to_supervision(self) -> dict[str, Any]:
        """Return the boxes for the package supervision.

        Returns
        -------
        detections : a `supervision.Detections` object for every image, by file name

        Raises
        ------
        InputError : supervision is not installed
        """
        supervision = _installed("supervision")
        found = {}
        for index, image in enumerate(self.dataset.images):
            image_boxes = self.boxes.where(self.boxes.image == index)
            found[image.file] = supervision.Detections(
                xyxy=image_boxes.boxes,
                confidence=image_boxes.score,
                class_id=image_boxes.label,
                data={"class_name": np.array([self.dataset.classes[c] for c in image_boxes.label.tolist()], dtype=str)},
            )
        return found

    def _repr_html_(self) -> str:
        """Return the first boxes as an HTML table, for notebooks."""
        rows = []
        for image in self:
            for found in image.boxes:
                x, y, width, height = to_xywh(np.array(found.box)).round().astype(int).tolist()
                cells = (image.file, found.tag, f"{width} x {height} at ({x}, {y})", f"{found.confidence:.2f}")
                rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
            if len(rows) >= _SHOWN:
                break
        body = "".join(f"<tr>{row}</tr>" for row in rows[:_SHOWN])
        more = f"<p>{len(self.boxes)} boxes in {len(self)} images</p>"
        return f"<table><tr><th>image</th><th>tag</th><th>box</th><th>confidence</th></tr>{body}</table>{more}"


def scored_boxes(
    positives: tuple[Tensor, ...], boxes: tuple[Tensor, ...], confidence: tuple[Tensor, ...]
) -> ScoredBoxes:
    """Collect the boxes (M, 4) and confidences (M,) of every class; confidences are rounded to four digits."""
    image = np.concatenate([bags.numpy() for bags in positives])
    label = np.concatenate([np.full(len(bags), c) for c, bags in enumerate(positives)])
    corners = np.concatenate([entry.cpu().numpy() for entry in boxes])
    score = np.concatenate([entry.cpu().numpy() for entry in confidence]).round(4)
    return ScoredBoxes(image, label, corners.astype(np.float64).reshape(-1, 4), score)


def _installed(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"{name} is not installed: pip install {name}") from error
