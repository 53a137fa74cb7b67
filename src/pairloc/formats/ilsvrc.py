"""ILSVRC DET: XML files in folders of image sets, synsets as class names, 0-based corners."""

from pathlib import Path

from pairloc.datasets.building import Builder
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.findings import Findings
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.formats.voc import ImageNames, image_set, parse_xml
from pairloc.io import read_text

_NAME_FILES = ("map_det.txt", "devkit/data/map_det.txt", "LOC_synset_mapping.txt")


def matches(path: Path) -> bool:
    """Whether this is the ILSVRC folder or one of its DET image sets."""
    return _root(path) is not None


def parse(path: Path, builder: Builder) -> None:
    """Read all XML files in `Annotations/DET`, or those of an image set such as `ImageSets/DET/val.txt`.

    Lines of an image set without a folder (`val.txt`) refer to the folder with the name of the set. Images without an
    XML file (the negatives of the training set) have no tags. If the folder has a `map_det.txt`, synsets are replaced
    by their words.
    """
    _parse(path, builder, None)


def _parse(path: Path, builder: Builder, names_file: Path | None) -> None:
    root = _root(path)
    if root is None:
        raise InputError(f"{path}: is not an ILSVRC DET folder: it has no folder 'Annotations/DET'")
    annotations = root / "Annotations" / "DET"
    if builder.folder is None:
        builder.folder = root / "Data" / "DET"
    files = ImageNames(builder.folder)
    names = synset_names(root, names_file)
    if path.is_file():
        listed = image_set(path, builder, lambda name: files.find(name) is not None)
        stems = [(name if "/" in name else f"{path.stem}/{name}", place) for name, place in listed]
    else:
        stems = [
            (xml.relative_to(annotations).with_suffix("").as_posix(), str(xml))
            for xml in sorted(annotations.rglob("*.xml"))
        ]
    for stem, place in stems:
        xml = annotations / f"{stem}.xml"
        file = files.find(stem) or f"{stem}.JPEG"
        if xml.is_file():
            parse_xml(xml, file, builder, first_pixel=0, names=names)
        else:
            builder.image(file, place)


def _root(path: Path) -> Path | None:
    folders = path.absolute().parents[:4] if path.is_file() and path.suffix == ".txt" else [path]
    return next((folder for folder in folders if (folder / "Annotations" / "DET").is_dir()), None)


def read_ilsvrc(root: Path, names: Path | None = None) -> tuple[Dataset, GroundTruth]:
    """Read all of ILSVRC DET with its boxes.

    Raises an InputError if the words of the synsets are missing: the protocol sorts the classes by them.
    """
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder")
    if names is None and not synset_names(root, None):
        raise InputError(f"{root}: has no {_NAME_FILES[0]} with the words of the synsets; pass it with --names")
    findings = Findings()
    builder = Builder(findings)
    _parse(root, builder, names)
    parsed = builder.build(str(root))
    findings.raise_first_error()
    return parsed.dataset, GroundTruth(parsed.image, parsed.label, parsed.boxes, parsed.ignored)


def read_image_set(image_set_file: Path) -> set[str]:
    """The names of the images in an image set, without folders."""
    return {line.split()[0].rsplit("/", 1)[-1] for line in read_text(image_set_file).splitlines() if line.strip()}


def synset_names(root: Path, file: Path | None) -> dict[str, str]:
    """Map synsets to words, from lines such as `n02672831 1 accordion` or `n01440764 tench, Tinca tinca`."""
    file = file or next((root / name for name in _NAME_FILES if (root / name).is_file()), None)
    if file is None:
        return {}
    names: dict[str, str] = {}
    for line in read_text(file).splitlines():
        synset, _, words = line.strip().partition(" ")
        first, _, rest = words.strip().partition(" ")
        words = rest if first.isdigit() and rest else words
        if words.strip():
            names[synset] = words.split(",")[0].strip()
    return names
