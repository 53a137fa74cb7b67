"""Read an export with the reader of another program and print its boxes; runs in the environment of that program.

Usage: python receive.py datumaro-voc|datumaro-yolo|datumaro-cvat|label-studio FOLDER
"""

import json
import sys
from pathlib import Path


def by_datumaro(format: str, folder: Path) -> list[tuple[str, str, list[float]]]:
    """Read every box with datumaro, as (image, class, [x, y, width, height])."""
    import datumaro

    dataset = datumaro.Dataset.import_from(str(folder), format)
    labels = dataset.categories()[datumaro.AnnotationType.label]
    return [
        (Path(item.id).name, labels[box.label].name, list(box.get_bbox()))
        for item in dataset
        for box in item.annotations
        if box.type == datumaro.AnnotationType.bbox
    ]


def by_label_studio(folder: Path) -> list[tuple[str, str, list[float]]]:
    """Read every box from the tasks, after Label Studio has validated configuration and predictions."""
    from label_studio_sdk.label_interface import LabelInterface

    interface = LabelInterface((folder / "labeling_config.xml").read_text())
    interface.validate()
    boxes = []
    for task in json.loads((folder / "tasks.json").read_text()):
        for prediction in task["predictions"]:
            errors = interface.validate_prediction(prediction, return_errors=True)
            if errors:
                sys.exit(str(errors))
            for result in prediction["result"]:
                value, width, height = result["value"], result["original_width"], result["original_height"]
                bbox = [value["x"] * width, value["y"] * height, value["width"] * width, value["height"] * height]
                name = Path(task["data"]["image"]).stem
                boxes.append((name, value["rectanglelabels"][0], [number / 100 for number in bbox]))
    return boxes


if __name__ == "__main__":
    program, export = sys.argv[1], Path(sys.argv[2])
    rows = by_label_studio(export) if program == "label-studio" else by_datumaro(program.split("-")[1], export)
    print(json.dumps(sorted(rows)))
