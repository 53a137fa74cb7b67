"""CVAT for images 1.1: `annotations.xml`, with the score as an attribute of every box."""

from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures, by_image, has_score

_CORNERS = ("xtl", "ytl", "xbr", "ybr")


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write the file that CVAT takes by 'Upload annotations'; its labels need a number attribute `score`."""
    root = Element("annotations")
    SubElement(root, "version").text = "1.1"
    task = SubElement(SubElement(root, "meta"), "task")
    SubElement(task, "size").text = str(len(dataset))
    labels = SubElement(task, "labels")
    for name in dataset.classes:
        label = SubElement(labels, "label")
        SubElement(label, "name").text = name
        attribute = SubElement(SubElement(label, "attributes"), "attribute")
        for key, value in (
            ("name", "score"),
            ("mutable", "False"),
            ("input_type", "text"),
            ("default_value", ""),
        ):
            SubElement(attribute, key).text = value
        SubElement(attribute, "values").text = ""
    for index, rows in enumerate(by_image(dataset, boxes)):
        width, height = pictures.size(index)
        image = SubElement(
            root,
            "image",
            id=str(index),
            name=dataset.images[index].file,
            width=str(width),
            height=str(height),
        )
        for row in rows:
            corners = {side: f"{corner:.2f}" for side, corner in zip(_CORNERS, boxes.boxes[row].tolist(), strict=True)}
            name, score = dataset.classes[boxes.label[row]], float(boxes.score[row])
            box = SubElement(
                image, "box", {"label": name, "source": "auto", "occluded": "0", **corners, "z_order": "0"}
            )
            if has_score(score):
                SubElement(box, "attribute", name="score").text = repr(score)
    indent(root)
    ElementTree(root).write(folder / "annotations.xml", encoding="utf-8", xml_declaration=True)
    pictures.copy_to(folder / "images")
