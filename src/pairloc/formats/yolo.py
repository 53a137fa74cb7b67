"""YOLO: a data.yaml, and one text file per image with lines `class x y width height`, relative to the image size."""

from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from pairloc.boxes import Size
from pairloc.datasets.building import SUFFIXES, Builder, images_below, parse_number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, by_image, has_score, stems
from pairloc.images import ImageError, read_header
from pairloc.io import read_bytes, read_text, reason, write_text

_SPLITS = ("train", "val", "test")


def matches(path: Path) -> bool:
    """Whether this is a data.yaml or a folder with one."""
    return _yaml_of(path) is not None


def parse(path: Path, builder: Builder) -> None:
    """Read the images of the splits train, val and test, and their label files.

    All paths are relative to the folder of data.yaml, or to the image folder that the user passed. A label line may end
    with a score; a polygon (segmentation label) is read as its bounding box.
    """
    file = _yaml_of(path)
    if file is None:
        raise InputError(f"{path}: is not a YOLO data set: it has no data.yaml")
    settings = _read_yaml(file)
    labels = _labels(settings, file, builder)
    root = file.parent.resolve()
    names = _image_names(settings, root, file, builder)
    image_folder = root
    if builder.folder is not None:
        names, image_folder = _names_in(builder.folder, names), builder.folder
    elif names and all(name.startswith("images/") for name in names):
        names, image_folder = [name.removeprefix("images/") for name in names], root / "images"
    builder.folder = image_folder
    label_files = set()
    for name in names:
        size = _size(image_folder / name, builder)
        image = builder.image(name, str(image_folder / name), size=size)
        label_file = _label_file(root, image_folder, name)
        label_files.add(label_file)
        if image >= 0 and label_file.is_file():
            _parse_labels(label_file, image, size, labels, builder)
    for folder in {file.parent for file in label_files if file.parent.is_dir() and file.parent != root}:
        for orphan in sorted(set(folder.glob("*.txt")) - label_files - {root / "train.txt"}):
            builder.findings.add("unknown-image", orphan, "there is no image for these labels")


def _yaml_of(path: Path) -> Path | None:
    if path.is_file():
        return path if path.suffix.lower() in (".yaml", ".yml") else None
    found = [
        file for name in ("data", "dataset") for end in ("yaml", "yml") if (file := path / f"{name}.{end}").is_file()
    ]
    return found[0] if found else None


class _Loader(yaml.BaseLoader):
    """Loads strings, lists and dicts only, so a class named `no` stays a string; rejects aliases (YAML bombs)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        settings = yaml.load(read_bytes(file), Loader=_Loader)  # noqa: S506 - BaseLoader builds strings only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}: line {mark.line + 1}" if mark is not None else str(file)
        raise InputError(f"{place}: is not valid YAML ({reason(error)})") from error
    if not isinstance(settings, dict):
        raise InputError(f"{file}: is not a YOLO data set: it has no keys 'names' and 'train'")
    return settings


def _labels(settings: dict[str, Any], file: Path, builder: Builder) -> dict[int, int]:
    """Map the class numbers of the label files to class indices."""
    names = settings.get("names")
    if isinstance(names, list):
        numbered = list(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.strip().isdecimal() for key in names):
        numbered = sorted((int(key), name) for key, name in names.items() if len(key) < 9)
    else:
        raise InputError(
            f"{file}: 'names' is {shown(names)}, not a list of class names or a map from numbers to class names"
        )
    return {key: builder.label(name, f"{file}: names[{key}]", id=key) for key, name in numbered}


def _image_names(settings: dict[str, Any], root: Path, file: Path, builder: Builder) -> list[str]:
    """The images of all splits, relative to the folder of the data set, without duplicates."""
    base = settings.get("path", "")
    names: dict[str, None] = {}
    for split in _SPLITS:
        entries = settings.get(split) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            place = f"{file}: {split}"
            if not isinstance(entry, str):
                raise InputError(f"{place}: is {shown(entry)}, not a path or a list of paths")
            split_path = _inside(root, base if isinstance(base, str) else "", entry)
            if split_path is None:
                builder.findings.add("missing-split", place, f"{shown(entry)} is not a folder or a list file in {root}")
            elif split_path.is_dir():
                prefix = PurePosixPath(split_path.relative_to(root).as_posix())
                names |= dict.fromkeys((prefix / name).as_posix() for name in images_below(split_path))
            else:
                lines = read_text(split_path).split("\n") if split_path.stat().st_size else []
                for line_number, line in enumerate(lines, start=1):
                    if line.strip() and (name := builder.file_name(line.strip(), f"{split_path}: line {line_number}")):
                        names[name] = None
    return list(names)


def _inside(root: Path, base: str, entry: str) -> Path | None:
    """The folder or list file of a split, if it is inside the folder of the data set; otherwise None.

    Programs write the paths of their own machine (`path: /home/me/data`, `train: ../train/images`), so the ends of such
    a path are tried below `root`. Nothing outside `root` is accessed.
    """
    entry, base = entry.replace("\\", "/"), base.replace("\\", "/")
    parts = [part for part in PurePosixPath(entry).parts if part not in ("/", "..", ".")]
    candidates = [entry, f"{base}/{entry}", *("/".join(parts[start:]) for start in range(len(parts)))]
    for candidate in candidates:
        path = PurePosixPath(candidate)
        safe = "\0" not in candidate and not path.is_absolute() and ".." not in path.parts and path.parts
        if safe and max(map(len, path.parts)) < 256 and (root / path).exists():
            return root / path
    return None


def _names_in(folder: Path, names: list[str]) -> list[str]:
    """Names relative to the image folder of the user: unchanged, or without the leading `images/`."""
    return [
        name if (folder / name).is_file() or not name.startswith("images/") else name.removeprefix("images/")
        for name in names
    ]


def _label_name(image: PurePosixPath) -> PurePosixPath:
    """Map `images/a.jpg` to `labels/a.txt`; like YOLO programs, replace the last folder named `images`."""
    parts = list(image.with_suffix(".txt").parts)
    for index in reversed(range(len(parts) - 1)):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return PurePosixPath(*parts)


def _label_file(root: Path, image_folder: Path, name: str) -> Path:
    """Path of the label file of an image; if the image is outside `root`, as if it were in `root/images`."""
    image = (image_folder / name).absolute()
    inside = image.is_relative_to(root)
    relative = image.relative_to(root) if inside else Path("images", name)
    return root / _label_name(PurePosixPath(relative.as_posix()))


def _size(path: Path, builder: Builder) -> Size | None:
    """Read the size of an image, which converts relative coordinates to pixels; None, with a finding, if it fails."""
    if not path.name.lower().endswith(SUFFIXES):
        builder.findings.add("unreadable-image", str(path), "does not have the suffix of a supported image format")
        return None
    try:
        return read_header(path).size
    except ImageError as error:
        builder.findings.add(error.kind, str(path), str(error))
        return None


def _parse_labels(file: Path, image: int, size: Size | None, labels: dict[int, int], builder: Builder) -> None:
    if size is None or not file.read_bytes().strip():
        return  # an empty label file means an image without objects
    width, height = size
    for line_number, line in enumerate(read_text(file).splitlines(), start=1):
        place, words = f"{file}: line {line_number}", line.split()
        if not words:
            continue
        values = [parse_number(word) for word in words]
        numbers = [value for value in values[1:] if value is not None]
        is_box, is_polygon = len(numbers) in (4, 5), len(numbers) >= 6 and len(numbers) % 2 == 0
        if len(numbers) != len(words) - 1 or not (is_box or is_polygon):
            builder.findings.add("bad-entry", place, f"is {shown(line)}, not 'class x y width height'")
            continue
        label = labels.get(int(words[0]), -1) if words[0].isdecimal() and len(words[0]) < 9 else -1
        if label < 0:
            builder.findings.add("unknown-category", place, f"class {shown(words[0])} is not in 'names' of data.yaml")
            continue
        if is_polygon:  # x1 y1 x2 y2 ...
            x1, x2, y1, y2 = min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])
        else:
            x, y, w, h = numbers[:4]
            x1, y1, x2, y2 = x - w / 2, y - h / 2, x + w / 2, y + h / 2
        score = numbers[4] if len(numbers) == 5 else None
        builder.box(image, label, [x1 * width, y1 * height, x2 * width, y2 * height], place, score=score)


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write a YOLO folder; the images belong in its subfolder `images/`.

    Training programs reject a sixth number in `labels/*.txt`, but prediction viewers expect the score there, so
    `labels_with_scores/` has the same labels with scores.
    """
    stems(dataset)  # raises if two images would share a label file
    for index, rows in enumerate(by_image(dataset, boxes)):
        name = _label_name(PurePosixPath("images", dataset.images[index].file)).as_posix()
        width, height = images.size(index)
        plain, scored = [], []
        for row in rows:
            x1, y1, x2, y2 = boxes.boxes[row].tolist()
            relative = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
            line = " ".join([str(int(boxes.label[row])), *(f"{value:.8f}" for value in relative)])
            score = float(boxes.score[row])
            plain.append(f"{line}\n")
            scored.append(f"{line} {score!r}\n" if has_score(score) else f"{line}\n")
        write_text(folder / name, "".join(plain))
        write_text(folder / "labels_with_scores" / name.removeprefix("labels/"), "".join(scored))
    (folder / "images").mkdir(exist_ok=True)
    images.copy_to(folder / "images")
    listing = "".join(f"./images/{image.file}\n" for image in dataset.images)
    write_text(folder / "train.txt", listing)
    settings = {
        "path": ".",
        "train": "train.txt",
        "val": "train.txt",
        "names": dict(enumerate(dataset.classes)),
    }
    write_text(folder / "data.yaml", yaml.safe_dump(settings, allow_unicode=True, sort_keys=False))
