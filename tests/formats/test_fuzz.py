"""For any file content, a reader either reads it or raises a one-line InputError."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import image_file, sample, voc_xml, write_ilsvrc, write_images
from pairloc.datasets.findings import Findings
from pairloc.errors import InputError
from pairloc.formats.reading import parse
from pairloc.formats.writing import writable_formats, write

EXAMPLES = 1250  # for each of the eight readers: 10,000 corrupted files in total

HOSTILE = [
    b"", b"\0", b"NaN", b"-Infinity", b"1e999", b"-1", b"99999999999999999999", b"null", b"true", b"[]", b"{}", b'""',
    b'"', b"\\", b"../../x", b"&lol;", b"<!DOCTYPE a [<!ENTITY e 'x'>]>", b"<", b">", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b'"\\ud800"', b"&x *x", b"*x", b"<<: *x", b"\n", b"\r", b",", b";", b" ", b"[" * 3000, b"9" * 5000,
    b"\xe2\x80\xa8", b"%", b"://", b"?d=", b"!!python/object:os.system",
]  # fmt: skip
VALUES: list[object] = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    "",
    "x",
    "\ud800",
    "../x",
    "a\0b",
    [],
    {},
    [[]],
    {"id": {}},
]


def from_export(format: str) -> Callable[[Path], tuple[Path, list[str]]]:
    def make(root: Path) -> tuple[Path, list[str]]:
        dataset, boxes = sample()
        out = root / "data"
        out.mkdir()
        write(format, out, dataset, boxes, write_images(root / "image_files", dataset))
        kinds = (".json", ".xml", ".csv", ".txt", ".yaml")
        files = [path for path in sorted(out.rglob("*")) if path.suffix in kinds and path.name != "labeling_config.xml"]
        read_files = [path for path in files if "with_scores" not in str(path)]
        return out, [path.relative_to(out).as_posix() for path in read_files]

    return make


def make_ilsvrc(root: Path) -> tuple[Path, list[str]]:
    write_ilsvrc(root / "data")
    return root / "data", ["Annotations/DET/val/ILSVRC2013_val_00000001.xml", "map_det.txt"]


def make_folders(root: Path) -> tuple[Path, list[str]]:
    for name in ("cat/1.png", "hot dog/1.png"):
        image_file(root / "data" / name)
    (root / "data" / "cat" / "2.png").write_text(voc_xml("x"))
    return root / "data", ["cat/2.png"]


MAKERS = {name: from_export(name) for name in writable_formats()} | {
    "ilsvrc": make_ilsvrc,
    "folders": make_folders,
}

edit = st.tuples(
    st.sampled_from(["cut", "insert", "replace", "delete", "copy", "flip"]),
    st.floats(0, 1),
    st.integers(0, 40),
    st.one_of(st.sampled_from(HOSTILE), st.binary(max_size=8)),
)


def corrupt(content: bytes, edits: list[tuple[str, float, int, bytes]]) -> bytes:
    for what, where, length, payload in edits:
        at = int(where * len(content))
        match what:
            case "cut":
                content = content[:at]
            case "insert":
                content = content[:at] + payload + content[at:]
            case "replace":
                content = content[:at] + payload + content[at + length :]
            case "delete":
                content = content[:at] + content[at + length :]
            case "copy":
                content = content[:at] + content[max(0, at - length) :]
            case _ if content:
                content = content[: at - 1] + bytes([content[at - 1] ^ (1 << length % 8)]) + content[at:]
    return content


def corrupt_json(content: bytes, where: list[float], value: object) -> bytes:
    """Replace one value of a JSON file; `where` (0 ... 1 per level) selects the path to it."""
    root = {"root": json.loads(content)}
    node: object = root
    for step in where:
        if not isinstance(node, dict | list) or not node:
            break
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[int(step * (len(keys) - 1))]
        child = node[key]
        if step == where[-1] or not isinstance(child, dict | list) or not child:
            node[key] = value
            break
        node = child
    return json.dumps(root["root"]).encode()


@pytest.mark.parametrize("format", MAKERS)
def test_a_corrupted_file_is_read_or_rejected_cleanly(tmp_path: Path, format: str) -> None:
    original, names = MAKERS[format](tmp_path)
    outcomes: dict[str, int] = {"read": 0, "findings": 0, "rejected": 0}

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(names),
        st.lists(edit, min_size=1, max_size=4),
        st.lists(st.floats(0, 1), min_size=1, max_size=6),
        st.sampled_from(VALUES),
        st.booleans(),
    )
    def check(
        name: str, edits: list[tuple[str, float, int, bytes]], where: list[float], value: object, by_value: bool
    ) -> None:
        file = original / name
        content = file.read_bytes()
        is_json = by_value and name.endswith(".json")
        try:
            file.write_bytes(corrupt_json(content, where, value) if is_json else corrupt(content, edits))
            findings = Findings()
            parsed = parse(original, format, None, findings)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            assert len(str(error)) < 1000 + len(str(original))
            outcomes["rejected"] += 1
        else:
            dataset = parsed.dataset
            assert all(0 <= label < len(dataset.classes) for tags in dataset.tags for label in tags)
            assert ((parsed.image >= 0) & (parsed.image < len(dataset))).all()
            assert (parsed.boxes[:, 2:] > parsed.boxes[:, :2]).all()
            assert len({image.file for image in dataset.images}) == len(dataset)
            assert not any(".." in Path(image.file).parts for image in dataset.images)
            for finding in findings:
                assert len(str(finding).splitlines()) == 1
                str(finding).encode()
            outcomes["findings" if len(findings) else "read"] += 1
        finally:
            file.write_bytes(content)

    check()
    assert sum(outcomes.values()) >= EXAMPLES
    if format != "folders":  # this reader does not open the images
        assert outcomes["rejected"] + outcomes["findings"] > EXAMPLES // 10, outcomes
    shutil.rmtree(original)
