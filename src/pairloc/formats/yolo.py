"""YOLO: a data.yaml, and for every image a text file of `class x y width height` as shares of its size."""

from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from pairloc.boxes import Size
from pairloc.datasets.building import SUFFIXES, Builder, images_below, number
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
    """Read the images that train, val and test name, and the labels beside them.

    Every name is taken below the folder of the data.yaml, or below the image folder the user gave. Lines may end with
    a confidence; a polygon (segmentation labels) counts as the box around it.
    """
    file = _yaml_of(path)
    if file is None:
        raise InputError(f"{path}: is not a YOLO data set: there is no data.yaml")
    settings = _read_yaml(file)
    labels = _labels(settings, file, builder)
    root = file.parent.resolve()
    names = _image_names(settings, root, file, builder)
    image_folder = root
    if builder.folder is not None:
        names, image_folder = _below(builder.folder, names), builder.folder
    elif names and all(name.startswith("images/") for name in names):
        names, image_folder = [name.removeprefix("images/") for name in names], root / "images"
    builder.folder = image_folder
    label_files = set()
    for name in names:
        size = _size(image_folder / name, builder)
        image = builder.image(name, str(image_folder / name), size=size)
        text = _label_file(root, image_folder, name)
        label_files.add(text)
        if image >= 0 and text.is_file():
            _parse_labels(text, image, size, labels, builder)
    for folder in {text.parent for text in label_files if text.parent.is_dir() and text.parent != root}:
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
    """Text, lists and maps alone: a class called `no` stays a class, and an alias (a bomb's fuse) is refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        settings = yaml.load(read_bytes(file), Loader=_Loader)  # noqa: S506 - BaseLoader builds text only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}: line {mark.line + 1}" if mark is not None else str(file)
        raise InputError(f"{place}: is not valid YAML ({reason(error)})") from error
    if not isinstance(settings, dict):
        raise InputError(f"{file}: is not a YOLO data set: it has no keys 'names' and 'train'")
    return settings


def _labels(settings: dict[str, Any], file: Path, builder: Builder) -> dict[int, int]:
    """The number in the label files -> class index."""
    names = settings.get("names")
    if isinstance(names, list):
        numbered = list(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.strip().isdecimal() for key in names):
        numbered = sorted((int(key), name) for key, name in names.items() if len(key) < 9)
    else:
        raise InputError(f"{file}: 'names' is {shown(names)}, not a list of class names")
    return {key: builder.label(name, f"{file}: names[{key}]", id=key) for key, name in numbered}


def _image_names(settings: dict[str, Any], root: Path, file: Path, builder: Builder) -> list[str]:
    """The images of all splits, relative to the data set's folder."""
    base = settings.get("path", "")
    names: dict[str, None] = {}
    for split in _SPLITS:
        entries = settings.get(split) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            place = f"{file}: {split}"
            if not isinstance(entry, str):
                raise InputError(f"{place}: is {shown(entry)}, not a folder or list of folders")
            found = _inside(root, base if isinstance(base, str) else "", entry)
            if found is None:
                builder.findings.add("missing-split", place, f"{shown(entry)} is not a folder or list below {root}")
            elif found.is_dir():
                prefix = PurePosixPath(found.relative_to(root).as_posix())
                names |= dict.fromkeys((prefix / name).as_posix() for name in images_below(found))
            else:
                lines = read_text(found).split("\n") if found.stat().st_size else []
                for line_number, line in enumerate(lines, start=1):
                    if line.strip() and (name := builder.file_name(line.strip(), f"{found}: line {line_number}")):
                        names[name] = None
    return list(names)


def _inside(root: Path, base: str, entry: str) -> Path | None:
    """The folder or list an entry means, if it lies below the data set's folder.

    Programs write paths of the machine they ran on (`path: /home/me/data`, `train: ../train/images`): their ends are
    looked for here, and nothing outside is.
    """
    entry, base = entry.replace("\\", "/"), base.replace("\\", "/")
    parts = [part for part in PurePosixPath(entry).parts if part not in ("/", "..", ".")]
    tails = [entry, f"{base}/{entry}", *("/".join(parts[start:]) for start in range(len(parts)))]
    for tail in tails:
        path = PurePosixPath(tail)
        safe = "\0" not in tail and not path.is_absolute() and ".." not in path.parts and path.parts
        if safe and max(map(len, path.parts)) < 256 and (root / path).exists():
            return root / path
    return None


def _below(folder: Path, names: list[str]) -> list[str]:
    """Names under a folder the user gave: as they are, or without the leading `images/`."""
    return [
        name if (folder / name).is_file() or not name.startswith("images/") else name.removeprefix("images/")
        for name in names
    ]


def _label_name(image: PurePosixPath) -> PurePosixPath:
    """`images/a.jpg` -> `labels/a.txt`: the last folder called images, as the YOLO programs do."""
    parts = list(image.with_suffix(".txt").parts)
    for index in reversed(range(len(parts) - 1)):
        if parts[index] == "images":
            parts[index] = "labels"
            break
    return PurePosixPath(*parts)


def _label_file(root: Path, image_folder: Path, name: str) -> Path:
    """Where the labels of an image lie: by its own path, or below the data set if its folder lies elsewhere."""
    image = (image_folder / name).absolute()
    inside = image.is_relative_to(root)
    relative = image.relative_to(root) if inside else Path("images", name)
    return root / _label_name(PurePosixPath(relative.as_posix()))


def _size(path: Path, builder: Builder) -> Size | None:
    """Shares of the image's size mean nothing without it."""
    if not path.name.lower().endswith(SUFFIXES):
        builder.findings.add("unreadable-image", str(path), "is not an image")
        return None
    try:
        return read_header(path).size
    except ImageError as error:
        builder.findings.add(error.kind, str(path), str(error))
        return None


def _parse_labels(file: Path, image: int, size: Size | None, labels: dict[int, int], builder: Builder) -> None:
    if size is None or not file.read_bytes().strip():
        return  # an empty file is an image without objects
    width, height = size
    for line_number, line in enumerate(read_text(file).splitlines(), start=1):
        place, words = f"{file}: line {line_number}", line.split()
        if not words:
            continue
        values = [number(word) for word in words]
        shares = [value for value in values[1:] if value is not None]
        if len(shares) != len(words) - 1 or not (len(shares) in (4, 5) or (len(shares) >= 6 and len(shares) % 2 == 0)):
            builder.findings.add("bad-entry", place, f"is {shown(line)}, not 'class x y width height'")
            continue
        label = labels.get(int(words[0]), -1) if words[0].isdecimal() and len(words[0]) < 9 else -1
        if label < 0:
            builder.findings.add("unknown-category", place, f"class {shown(words[0])} is not among the names")
            continue
        if len(shares) >= 6:  # a polygon x1 y1 x2 y2 ...
            x1, x2, y1, y2 = min(shares[::2]), max(shares[::2]), min(shares[1::2]), max(shares[1::2])
        else:
            x, y, w, h = shares[:4]
            x1, y1, x2, y2 = x - w / 2, y - h / 2, x + w / 2, y + h / 2
        score = shares[4] if len(shares) == 5 else None
        builder.box(image, label, [x1 * width, y1 * height, x2 * width, y2 * height], place, score=score)


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write a YOLO folder; the images belong into its `images/`.

    Training programs refuse a sixth number in `labels/*.txt`, prediction viewers want the score there: so there is
    `labels_with_scores/` too.
    """
    stems(dataset)  # two images of one stem would share a label file
    for index, rows in enumerate(by_image(dataset, boxes)):
        name = _label_name(PurePosixPath("images", dataset.images[index].file)).as_posix()
        width, height = images.size(index)
        plain, scored = [], []
        for row in rows:
            x1, y1, x2, y2 = boxes.boxes[row].tolist()
            shares = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height)
            line = " ".join([str(int(boxes.label[row])), *(f"{share:.8f}" for share in shares)])
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
