"""CSV: `boxes.csv`, one row a box, for spreadsheets and data frames."""

import csv
from pathlib import Path

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures, by_image, has_score


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write image, size, label, score and corners; an image without a box has a row with these empty."""
    with (folder / "boxes.csv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(["image", "width", "height", "label", "score", "x1", "y1", "x2", "y2"])
        for image, rows in zip(dataset.images, by_image(dataset, boxes), strict=True):
            head = [image.file, *(image.size or ("", ""))]
            for row in rows:
                score = float(boxes.score[row])
                corners = [f"{corner:.2f}" for corner in boxes.boxes[row].tolist()]
                table.writerow([*head, dataset.classes[boxes.label[row]], score if has_score(score) else "", *corners])
            if not rows:
                table.writerow([*head, "", "", "", "", "", ""])
