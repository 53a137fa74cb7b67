"""COCO JSON: boxes, or only the tags of every image."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from pairloc.boxes import Bools, Floats, Ints, to_xywh
from pairloc.datasets.building import Builder, int_if_whole, parse_number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, has_score
from pairloc.io import read_json, write_json

ONE_FILE = True


def matches(path: Path) -> bool:
    """Whether this is a JSON file; Label Studio, which also uses JSON, is tried first."""
    return path.suffix.lower() == ".json"


def parse(path: Path, builder: Builder) -> None:
    """Read a COCO file.

    `images` is required; `categories` defines the classes. `annotations` with a `bbox` are boxes, those without are
    tags. An image may also list its tags, by name or category id, under `classes` or `labels`.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise InputError(f"{path}: is not a COCO file: it has no list 'images'")
    labels = _categories(content, path, builder)
    _images(content, path, builder, labels)
    _annotations(content, path, builder, labels)
    base = path.parent if path.parent.name else path.absolute().parent
    last_word = path.stem.rsplit("_", 1)[-1]  # instances_val2017.json -> val2017
    builder.choose_image_folder(
        [
            base / "images",
            base,
            base / last_word,
            base / "images" / last_word,
            base.parent / "images",
            base.parent / last_word,
            base.parent / "images" / last_word,
            base.parent,
        ]
    )


class Place(NamedTuple):
    """Position of an entry in a file; formatted only for a message, since a file may have a million entries."""

    path: Path
    key: str
    row: int
    id: object

    def __str__(self) -> str:
        id_text = f" (id {shown(self.id)})" if isinstance(self.id, int | str) else ""
        return f"{self.path}: {self.key}[{self.row}]{id_text}"


def _entries(content: dict[str, Any], key: str, path: Path, builder: Builder) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the entries of a list, each with its place."""
    entries = content.get(key) or []
    if not isinstance(entries, list):
        raise InputError(f"{path}: '{key}' is {shown(entries)}, not a list")
    for index, entry in enumerate(entries):
        if isinstance(entry, dict):
            yield Place(path, key, index, entry.get("id")), entry
        else:
            builder.findings.add("bad-entry", Place(path, key, index, None), f"is {shown(entry)}, not an object")


def _categories(content: dict[str, Any], path: Path, builder: Builder) -> dict[object, int]:
    """Map category ids to class indices."""
    labels: dict[object, int] = {}
    for place, entry in _entries(content, "categories", path, builder):
        id, name = int_if_whole(entry.get("id")), entry.get("name")
        if not isinstance(id, int) or isinstance(id, bool):
            builder.findings.add("bad-entry", place, f"category id is {shown(id)}, not a whole number")
        elif id in labels:
            builder.findings.add("duplicate-id", place, f"category id {shown(id)} is already used")
        else:
            if isinstance(name, str) and name.strip() in builder.classes:
                builder.findings.add("duplicate-class", place, f"the class name {shown(name)} is already used")
            labels[id] = builder.label(name, place, id=id)
    return labels


def _images(content: dict[str, Any], path: Path, builder: Builder, labels: dict[object, int]) -> None:
    for place, entry in _entries(content, "images", path, builder):
        size = (entry.get("width"), entry.get("height"))
        image = builder.image(entry.get("file_name"), place, id=entry.get("id"), size=size)
        names = entry.get("labels") if entry.get("classes") is None else entry["classes"]
        if names is None:
            continue
        if not isinstance(names, list):
            builder.findings.add("bad-entry", place, f"the classes are {shown(names)}, not a list")
            continue
        for name in names:
            if isinstance(name, int) and not isinstance(name, bool):
                builder.tag(image, _class_of(name, labels, place, builder))
            elif isinstance(name, str) and labels and name.strip() not in builder.classes:
                builder.findings.add("unknown-category", place, f"class {shown(name)} is not in 'categories'")
            else:
                builder.tag(image, builder.label(name, place))


def _annotations(content: dict[str, Any], path: Path, builder: Builder, labels: dict[object, int]) -> None:
    seen: set[object] = set()
    for place, entry in _entries(content, "annotations", path, builder):
        id = entry.get("id")
        if isinstance(id, int | str):
            if id in seen:
                builder.findings.add("duplicate-id", place, f"annotation id {shown(id)} is already used")
                continue
            seen.add(id)
        image = builder.find_image(entry.get("image_id"))
        if image is None:
            builder.findings.add("unknown-image", place, f"there is no image with id {shown(entry.get('image_id'))}")
            continue
        label = _class_of(entry.get("category_id"), labels, place, builder)
        if entry.get("bbox") in (None, []):
            builder.tag(image, label)
            continue
        builder.box(
            image,
            label,
            _corners(entry["bbox"]),
            place,
            ignored=entry.get("iscrowd") in (1, True),
            score=entry.get("score"),
        )


def _class_of(id: object, labels: dict[object, int], place: Place, builder: Builder) -> int:
    """The class index of a category id; -1, with a finding, if it is unknown."""
    id = int_if_whole(id)
    if isinstance(id, int | str) and not isinstance(id, bool) and id in labels:
        return labels[id]
    builder.findings.add("unknown-category", place, f"category id {shown(id)} is not in 'categories'")
    return -1


def _corners(bbox: object) -> list[object]:
    """Convert (x, y, width, height) to (x1, y1, x2, y2); anything else is returned as is, for the builder to report."""
    values = [parse_number(value) for value in bbox] if isinstance(bbox, list) and len(bbox) == 4 else []
    match values:
        case [float(x), float(y), float(width), float(height)]:
            return [x, y, x + width, y + height]
        case _:
            return bbox if isinstance(bbox, list) else [bbox]


class Segmentation(BaseModel):
    """The mask of a box, run-length encoded as pycocotools does, and how far it can be trusted."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    size: tuple[int, int]  # height, width
    counts: str
    area: int  # pixels
    quality: float  # IoU with the true mask, as the segmenter estimates it
    stability: float  # IoU of the masks at a higher and a lower threshold
    overlap: float  # IoU of the box of the mask with the box before


def to_coco(
    dataset: Dataset,
    image: Ints,
    label: Ints,
    boxes: Floats,
    *,
    ignored: Bools | None = None,
    score: Floats | None = None,
    masks: Sequence[Segmentation | None] = (),
    description: str = "",
) -> dict[str, object]:
    """The content of a COCO file: boxes (n, 4) with image (n,), label (n,), and optionally ignored (n,), score (n,).

    Image and category ids are those of the data set. A box with a mask gets its segmentation.
    """
    xywh = to_xywh(boxes).round(2).tolist()
    area = np.prod(to_xywh(boxes)[:, 2:], axis=1).round(2).tolist()
    crowd = [0] * len(image) if ignored is None else ignored.astype(int).tolist()
    annotations: list[dict[str, object]] = [
        {
            "id": annotation_id,
            "image_id": dataset.images[i].id,
            "category_id": dataset.class_ids[c],
            "bbox": bbox,
            "area": size,
            "iscrowd": is_crowd,
        }
        for annotation_id, (i, c, bbox, size, is_crowd) in enumerate(
            zip(image.tolist(), label.tolist(), xywh, area, crowd, strict=True), start=1
        )
    ]
    if score is not None:
        for annotation, value in zip(annotations, score.tolist(), strict=True):
            if has_score(value):
                annotation["score"] = value
    for annotation, mask in zip(annotations, masks, strict=False):
        if mask is not None:
            annotation |= {
                "segmentation": {"size": mask.size, "counts": mask.counts}, "area": mask.area,
                "quality": mask.quality, "stability": mask.stability, "overlap": mask.overlap,
            }  # fmt: skip
    return {
        "info": {"description": description},
        "licenses": [],
        "categories": [
            {"id": id, "name": name, "supercategory": "object"}
            for id, name in zip(dataset.class_ids, dataset.classes, strict=True)
        ],
        "images": [
            {"id": entry.id, "file_name": entry.file}
            | ({} if entry.size is None else {"width": entry.size[0], "height": entry.size[1]})
            for entry in dataset.images
        ],
        "annotations": annotations,
    }


def write_boxes(path: Path, dataset: Dataset, boxes: ScoredBoxes) -> None:
    """Write predicted boxes with scores as COCO JSON."""
    content = to_coco(
        dataset, boxes.image, boxes.label, boxes.boxes, score=boxes.score, description="boxes found by pairloc"
    )
    write_json(path, content)


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `annotations.json`, which pycocotools reads; image and category ids are those of the data set."""
    write_boxes(folder / "annotations.json", dataset, boxes)
