"""Label Studio: `tasks.json` with pre-annotations to review, `labeling_config.xml` for the project."""

import statistics
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from pairloc import __version__
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures, by_image, has_score
from pairloc.io import write_json


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write tasks whose `data.image` is the picture's name; put your storage's address in front of it."""
    tasks = []
    for index, rows in enumerate(by_image(dataset, boxes)):
        width, height = pictures.size(index)
        scores = [float(boxes.score[row]) for row in rows]
        results: list[dict[str, object]] = []
        for row, score in zip(rows, scores, strict=True):
            x1, y1, x2, y2 = boxes.boxes[row].tolist()
            value = {
                "x": 100 * x1 / width,
                "y": 100 * y1 / height,
                "width": 100 * (x2 - x1) / width,
                "height": 100 * (y2 - y1) / height,
                "rotation": 0,
                "rectanglelabels": [dataset.classes[boxes.label[row]]],
            }
            result = {
                "id": f"box{row + 1}",
                "type": "rectanglelabels",
                "from_name": "label",
                "to_name": "image",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": value,
            }
            results.append(result | ({"score": score} if has_score(score) else {}))
        known = [score for score in scores if has_score(score)]
        prediction: dict[str, object] = {"model_version": f"pairloc {__version__}", "result": results}
        prediction |= {"score": statistics.fmean(known)} if known else {}
        tasks.append({"data": {"image": dataset.images[index].file}, "predictions": [prediction]})
    write_json(folder / "tasks.json", tasks)
    view = Element("View")
    SubElement(view, "Image", name="image", value="$image")
    choices = SubElement(view, "RectangleLabels", name="label", toName="image")
    for name in dataset.classes:
        SubElement(choices, "Label", value=name)
    indent(view)
    ElementTree(view).write(folder / "labeling_config.xml", encoding="utf-8")
