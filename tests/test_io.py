import ast
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ConfigDict

from pairloc import io
from pairloc.errors import InputError, shown
from pairloc.io import (
    MANIFEST,
    copy_file,
    damaged_files,
    file_hashes,
    files_in,
    output_folder,
    read_json,
    read_model,
    read_text,
    read_xml,
    refuse_links,
    refuse_other_work,
    remove_partial_files,
    replacing,
    sha256,
    write_array,
    write_bytes,
    write_json,
    write_tensors,
    write_text,
)

SOURCE = Path(io.__file__).parent


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{\n"a": [1, 2\n', "line 3"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"1" * 5000, "not valid JSON"),
    ],
)
def test_broken_json_gives_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


BOMB = '<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol1 "&lol;&lol;&lol;">]><annotation>&lol1;</annotation>'
EXTERNAL_ENTITY = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'


@pytest.mark.parametrize("content", [BOMB, EXTERNAL_ENTITY, '<!DOCTYPE a SYSTEM "http://localhost/x.dtd"><a/>'])
def test_xml_with_a_dtd_is_rejected_before_entities_are_expanded(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.xml"
    file.write_text(content)
    with pytest.raises(InputError, match="has a DTD"):
        read_xml(file)


@pytest.mark.parametrize(
    "content", ["<a><b></a>", "<a>&undefined;</a>", "plain", '<?xml version="1.0" encoding="nope"?><a/>']
)
def test_broken_xml_gives_a_one_line_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.xml"
    file.write_text(content)
    with pytest.raises(InputError, match="not valid XML"):
        read_xml(file)


def test_xml_keeps_text_and_attributes(tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text('<a x="1"><b>hot &amp; dög</b></a>', encoding="utf-8")
    root = read_xml(file)
    assert (root.get("x"), root.findtext("b")) == ("1", "hot & dög")


def test_text_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"\xef\xbb\xbfimage")
    assert read_text(file) == "image"


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "none.json")


def test_shown_is_short_for_any_value() -> None:
    assert shown([1] * 10**6) == "a list of 1000000"
    assert len(shown("x" * 10**6)) <= 60
    assert shown(10**10_000) == "a huge whole number"


def write(path: Path, made_by: str = "verb", text: str = "hello", **settings: object) -> None:
    with output_folder(path, made_by, settings) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "x.txt").write_text(text)


def test_an_output_folder_appears_complete_with_its_manifest(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    write(out, seed=1)
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["made_by"] == "verb"
    assert manifest["settings"] == {"seed": 1}
    assert manifest["files"] == {"sub/x.txt": sha256(out / "sub" / "x.txt")}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), output_folder(tmp_path / "out", "verb", {}) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_same_output_may_be_written_again_and_keeps_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, seed=1)
    (out / "notes.txt").write_text("notes")
    write(out, seed=1, text="again")
    assert (out / "sub" / "x.txt").read_text() == "again"
    assert (out / "notes.txt").read_text() == "notes"


@pytest.mark.parametrize(
    ("made_by", "settings", "message"),
    [("other", {"seed": 1}, "output of 'verb'"), ("verb", {"seed": 2}, "other settings")],
)
def test_another_output_is_rejected_and_stays_unchanged(
    tmp_path: Path, made_by: str, settings: dict[str, object], message: str
) -> None:
    out = tmp_path / "out"
    write(out, seed=1)
    with pytest.raises(InputError, match=message):
        write(out, made_by, text="new", **settings)
    assert (out / "sub" / "x.txt").read_text() == "hello"


def test_a_folder_with_other_files_or_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("x")
    for name, message in (("theirs", "already contains other files"), ("file", "is a file")):
        with pytest.raises(InputError, match=message):
            write(tmp_path / name)


def test_an_empty_folder_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).is_file()


def test_files_of_an_earlier_output_are_removed(tmp_path: Path) -> None:
    for names in (("a", "b"), ("b", "c")):
        with output_folder(tmp_path / "out", "verb", {}) as folder:
            for name in names:
                (folder / name).write_text("x")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b", "c", MANIFEST]


def test_output_to_the_working_directory_and_to_a_linked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out, real in ((Path(), "here"), (tmp_path / "link", "real")):
        write(out)
        assert (tmp_path / real / MANIFEST).is_file()


def test_pipes_and_devices_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            read_json(path)


def write_copy(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.write_text("content")
        copy_file(source, path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "bytes": lambda path: write_bytes(path, b"content"),
    "text": lambda path: write_text(path, "content"),
    "json": lambda path: write_json(path, {"a": [1]}),
    "array": lambda path: write_array(path, np.arange(3)),
    "tensors": lambda path: write_tensors(path, {"a": torch.arange(3)}),
    "copy": write_copy,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_is_replaced_and_never_followed(tmp_path: Path, writer: str) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    for name, target in (("one", "thesis.txt"), ("other", "not there")):
        link = tmp_path / name
        link.symlink_to(tmp_path / target)
        WRITERS[writer](link)
        assert link.is_file()
        assert not link.is_symlink()
    assert (tmp_path / "thesis.txt").read_text() == "years"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "thesis.txt"]


@pytest.mark.parametrize("writer", WRITERS)
def test_long_names_and_missing_folders_work(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "new" / "folder" / ("ö" * 125)  # 250 bytes; a system allows 255
    WRITERS[writer](path)
    assert path.stat().st_size > 0
    assert len(list(path.parent.iterdir())) == 1


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    with replacing(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, InputError])
def test_an_exception_leaves_nothing_behind(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "x").write_text("before")
    with pytest.raises(error), replacing(tmp_path / "x") as partial:
        partial.write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"


def test_a_temporary_name_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with replacing(tmp_path / "x") as partial:
        partial.write_text("old")
    partial.symlink_to(tmp_path / "thesis.txt")  # an attacker may guess the temporary name
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "thesis.txt").read_text() == "years"
    assert (tmp_path / "x").read_text() == "new"
    assert not (tmp_path / "x").is_symlink()


def test_a_path_that_cannot_be_written_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder" / "in it").mkdir(parents=True)
    for path in (tmp_path / "file" / "below a file", tmp_path / "folder"):
        with pytest.raises(InputError, match="cannot be written") as caught:
            write_text(path, "new")
        assert str(path) in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_nan_is_rejected_in_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x", {"a": float("nan")})
    assert not list(tmp_path.iterdir())


def test_json_has_one_canonical_form(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"b": "dög", "a": [1, 2]})
    assert (tmp_path / "x").read_bytes() == '{"b":"dög","a":[1,2]}\n'.encode()


def test_hashes_detect_a_flipped_byte_a_missing_file_and_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("a", "b", "c", "sub/d", ".hidden", ".sub/e"):
        write_text(folder / name, f"the content of {name}")
    hashes = file_hashes(folder)
    assert list(hashes) == files_in(folder) == ["a", "b", "c", "sub/d"]
    assert damaged_files(folder, hashes) == []
    content = bytearray((folder / "a").read_bytes())
    content[3] ^= 1
    (folder / "a").write_bytes(content)
    (folder / "b").unlink()
    (folder / "c").rename(tmp_path / "c")
    (folder / "c").symlink_to(tmp_path / "c")  # with the same content
    assert damaged_files(folder, hashes) == [
        f"{folder / 'a'}: has changed since it was written",
        f"{folder / 'b'}: is missing",
        f"{folder / 'c'}: is missing",
    ]


def test_links_below_a_folder_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "x").write_text("x")
    refuse_links(tmp_path)
    refuse_links(tmp_path / "not there")
    for link, target in (
        (tmp_path / "sub" / "deep" / "file", tmp_path / "sub" / "x"),
        (tmp_path / "folder", tmp_path / "sub"),
        (tmp_path / ".hidden", tmp_path / "nowhere"),
    ):
        link.symlink_to(target)
        with pytest.raises(InputError, match=f"{link.name}: is a symbolic link; remove it"):
            refuse_links(tmp_path)
        link.unlink()


def test_other_files_in_a_folder_are_rejected(tmp_path: Path) -> None:
    def ours(folder: Path) -> bool:
        return (folder / "ours").is_file()

    refuse_other_work(tmp_path / "new", ours)
    (tmp_path / "folder").mkdir()
    refuse_other_work(tmp_path / "folder", ours)
    (tmp_path / "folder" / ".lock").write_text("")
    refuse_other_work(tmp_path / "folder", ours)  # hidden files do not count
    (tmp_path / "folder" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match=r"already contains other files \(thesis.txt\); choose another output folder"):
        refuse_other_work(tmp_path / "folder", ours)
    (tmp_path / "folder" / "ours").write_text("")
    refuse_other_work(tmp_path / "folder", ours)
    with pytest.raises(InputError, match="is a file; the output needs a folder"):
        refuse_other_work(tmp_path / "folder" / "ours", ours)


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    sides: tuple[int, int]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "Input should be a valid dictionary"),
        ("3", "Input should be a valid dictionary"),
        ('{"name": "x"}', "sides: Field required"),
        ('{"name": "x", "sides": [1]}', "sides.1: Field required"),
        ('{"name": 5, "sides": [1, 2]}', "name: Input should be a valid string, not 5"),
        ('{"name": "x", "sides": [1, 2], "more": 1}', "more: Extra inputs are not permitted"),
        (
            '{"name": ' + json.dumps("x" * 10_000) + ', "sides": ["' + "y" * 10_000 + '", 2]}',
            "sides.0: Input should be",
        ),
    ],
)
def test_a_file_that_does_not_fit_the_model_gives_a_one_line_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError) as caught:
        read_model(tmp_path / "x.json", Shape)
    problem = str(caught.value)
    assert problem.startswith(f"{tmp_path / 'x.json'}: ")
    assert message in problem
    assert len(problem.splitlines()) == 1
    assert len(problem) < len(str(tmp_path)) + 200


def test_a_file_that_fits_the_model_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"name": "x", "sides": [1, 2]})
    assert read_model(tmp_path / "x.json", Shape) == Shape(name="x", sides=(1, 2))


def writing_calls(file: Path) -> Iterator[str]:
    """The calls in a module that write a file directly, as `file:line: call`."""
    tree = ast.parse(file.read_text())
    in_memory = set(_buffers(tree))
    draws = any(name.split(".")[0] == "PIL" for name in _imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _writes(node, in_memory, draws):
            yield f"{file.relative_to(SOURCE.parent)}:{node.lineno}: {ast.unparse(node)[:100]}"


def _writes(call: ast.Call, in_memory: set[str], draws: bool) -> bool:
    called = call.func
    method = isinstance(called, ast.Attribute)
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    owner = ast.unparse(called.value).split(".")[-1] if isinstance(called, ast.Attribute) else ""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    to_memory = bool(arguments) and ast.unparse(arguments[0]) in in_memory
    match name:
        case "open" | "fdopen":
            texts = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            flags = any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND"))
            return flags or any(set(text) <= set("rwaxbtU+") and set(text) & set("wax+") for text in texts)
        case "write_text" | "write_bytes" | "touch":
            return method and owner != "io"  # those of pairloc.io are called by their bare names
        case "save_file" | "copyfile" | "copy2" | "copytree" | "move" | "savetxt" | "tofile":
            return True
        case "copy":
            return owner == "shutil"
        case "savefig" | "savez" | "savez_compressed":
            return not to_memory
        case "save":
            return not to_memory and (owner in ("np", "numpy", "torch") or draws)
    return False


def _buffers(tree: ast.AST) -> Iterator[str]:
    """The names of in-memory buffers, which may be written to."""
    for node in ast.walk(tree):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            names = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            pairs = list(zip(names, values, strict=False))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in ("BytesIO", "StringIO"):
                yield ast.unparse(target)


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


ALLOWED = {"pairloc/cli/__init__.py: os.open(os.devnull, os.O_WRONLY)"}  # not a file


def test_only_io_writes_files() -> None:
    """Every file is written through `replacing`: atomically, and never through a link."""
    files = [file for file in sorted(SOURCE.rglob("*.py")) if file != SOURCE / "io.py"]
    found = [line for file in files for line in writing_calls(file)]
    assert not [line for line in found if _without_line(line) not in ALLOWED], "\n".join(["", *found])


def _without_line(line: str) -> str:
    file, _, call = line.split(":", 2)
    return f"{file}:{call}"


def test_the_search_for_writing_calls_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(writing_calls(SOURCE / "io.py"))) >= 4
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "pairloc")
    bad = """
open(path, "w")
open(path, mode="ab")
path.open("r+b")
path.open(mode="x")
os.open(path, os.O_WRONLY | os.O_CREAT)
path.write_text("x")
(folder / "x").write_bytes(b"x")
np.save(path, array)
save_file(tensors, path)
shutil.copyfile(one, other)
figure.savefig(path)
image.save(path)
"""
    good = """
open(path)
path.open("rb")
Image.open(path, formats=FORMATS)
write_text(path, "wax")
io.write_bytes(path, b"x")
stream, other = io.BytesIO(), 1
figure.savefig(stream)
image.save(stream, "JPEG")
copy.copy(thing)
"""
    for text, expected in ((bad, 12), (good, 0)):
        file = tmp_path / "pairloc" / "x.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("from PIL import Image" + text)
        assert len(list(writing_calls(file))) == expected


def test_files_of_killed_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    """Ours and those that safetensors leaves when it is killed in the middle of a file."""
    folder = tmp_path / "proposer"
    folder.mkdir()
    left = [".0123abcd.partial-77", ".tmpE2Azoy"]
    kept = [".lock", ".tmp", ".tmpnotes.txt", ".0123abcd.partial", "tmpE2Azoy", "state.safetensors"]
    for name in (*left, *kept):
        (folder / name).write_text("x")
    remove_partial_files(tmp_path)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(kept)
