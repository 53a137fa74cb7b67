"""COCO JSON: `annotations.json`, with a `score` in every annotation."""

from pathlib import Path

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures
from pairloc.formats.coco import to_coco
from pairloc.io import write_json


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write the file that pycocotools reads; ids are those the boxes came with."""
    content = to_coco(
        dataset,
        boxes.image,
        boxes.label,
        boxes.boxes,
        score=boxes.score,
        description="boxes found by pairloc",
    )
    write_json(folder / "annotations.json", content)
