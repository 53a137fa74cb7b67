"""YOLO: `data.yaml` and `labels/*.txt` to train on, `labels_with_scores/*.txt` with the score as a sixth number.

Training programs refuse a sixth number, prediction viewers want it: so there are both.
"""

from pathlib import Path, PurePosixPath

import yaml

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures, by_image, has_score, stems
from pairloc.formats.yolo import label_name


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write a YOLO folder; the pictures belong into its `images/`."""
    stems(dataset)  # two pictures of one stem would share a label file
    for index, rows in enumerate(by_image(dataset, boxes)):
        name = label_name(PurePosixPath("images", dataset.images[index].file)).as_posix()
        width, height = pictures.size(index)
        plain, scored = [], []
        for row in rows:
            x1, y1, x2, y2 = boxes.boxes[row].tolist()
            shares = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
            line = " ".join([str(int(boxes.label[row])), *(f"{share:.8f}" for share in shares)])
            score = float(boxes.score[row])
            plain.append(f"{line}\n")
            scored.append(f"{line} {score!r}\n" if has_score(score) else f"{line}\n")
        _write_lines(folder / name, plain)
        _write_lines(folder / "labels_with_scores" / name.removeprefix("labels/"), scored)
    (folder / "images").mkdir(exist_ok=True)
    pictures.copy_to(folder / "images")
    listing = "".join(f"./images/{image.file}\n" for image in dataset.images)
    (folder / "train.txt").write_text(listing, encoding="utf-8")
    settings = {
        "path": ".",
        "train": "train.txt",
        "val": "train.txt",
        "names": dict(enumerate(dataset.classes)),
    }
    text = yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)
    (folder / "data.yaml").write_text(text, encoding="utf-8")


def _write_lines(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines), encoding="utf-8")
