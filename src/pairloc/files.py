"""Untrusted files are read defensively; results are written whole or not at all."""

import contextlib
import gc
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from pairloc import __version__
from pairloc.errors import InputError

MANIFEST = "manifest.json"
_LARGEST = 4 << 30  # no annotation file of any known data set comes near; beyond it memory would


def read_bytes(path: Path) -> bytes:
    """The content of an annotation file; a missing, unreadable, empty or absurdly large one is an InputError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is not an ordinary file")
        if status.st_size > _LARGEST:
            raise InputError(f"{path}: is larger than {_LARGEST >> 30} GiB; this is not an annotation file")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    if not content.strip():
        raise InputError(f"{path}: is empty")
    return content


def read_text(path: Path) -> str:
    """An annotation file as text: UTF-8, with or without a byte order mark."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if not text.strip():
        raise InputError(f"{path}: is empty")
    return text


def read_json(path: Path) -> Any:
    """A JSON file's value; syntax errors name line and column."""
    content = read_bytes(path)
    try:
        with no_garbage_collection():
            return json.loads(content)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: line {error.lineno}, column {error.colno}: is not valid JSON ({error.msg})"
        ) from error
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply to be an annotation file") from error
    except ValueError as error:  # undecodable text, or a number of thousands of digits
        raise InputError(f"{path}: is not valid JSON ({reason(error)})") from error


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Millions of small objects without a cycle among them: looking for cycles would take a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_xml(path: Path) -> Element:
    """An XML file's root. Any DTD is refused, and with it every entity: none is expanded, none is fetched."""

    def refuse(name: str, *_: object) -> None:
        raise InputError(f"{path}: has a DTD (<!DOCTYPE {name[:40]}>); remove it, annotations need none")

    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(path), True)
        root = builder.close()
    except expat.ExpatError as error:
        raise InputError(f"{path}: line {error.lineno}: is not valid XML ({reason(error)})") from error
    except (AssertionError, LookupError, ValueError) as error:  # e.g. an encoding that does not exist
        raise InputError(f"{path}: is not valid XML ({reason(error)})") from error
    return root


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write JSON of one spelling: UTF-8, no NaN, a newline at the end."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators)
    path.write_text(text + "\n", encoding="utf-8")


def write_whole(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write JSON, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.partial")
    write_json(unfinished, value, indent=indent)
    unfinished.replace(path)


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Write torch tensors as safetensors, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    partial = path.with_name(f".{path.name}.partial")
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, partial, metadata=metadata)
    except SafetensorError as error:  # a full disk, for one
        raise InputError(f"{path}: cannot be written ({error})") from error
    partial.replace(path)


def sha256(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def reason(error: BaseException) -> str:
    """An exception in few words, without repeating the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


@contextlib.contextmanager
def output_folder(path: Path, made_by: str, settings: Mapping[str, object]) -> Iterator[Path]:
    """A folder to write results into that appears under its name only when all of it is there.

    The manifest names the verb, its settings and the hash of every file. The same verb with the same settings may
    write again; a folder that holds anything else is refused before any work is done.
    """
    label = {"made_by": made_by, "settings": dict(settings)}
    named, path = path, path.resolve()
    _refuse_other_work(named, label)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{named}: cannot be written to ({reason(error)})") from error
    try:
        yield partial
        files = sorted(file for file in partial.rglob("*") if file.is_file())
        hashes = {file.relative_to(partial).as_posix(): sha256(file) for file in files}
        write_json(partial / MANIFEST, label | {"pairloc": __version__, "files": hashes}, indent=1)
        _move_into_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refuse_other_work(path: Path, label: Mapping[str, object]) -> None:
    try:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not path.is_dir():
            raise InputError(f"{path}: is a file; the output needs a folder")
    except OSError as error:
        raise InputError(f"{path}: cannot be written to ({reason(error)})") from error
    remedy = "name another output folder, or delete this one"
    manifest = read_json(path / MANIFEST) if (path / MANIFEST).is_file() else None
    if not isinstance(manifest, dict) or "made_by" not in manifest:
        raise InputError(f"{path}: already holds other work; {remedy}")
    if manifest["made_by"] != label["made_by"]:
        raise InputError(f"{path}: already holds the output of {manifest['made_by']!r}; {remedy}")
    if manifest.get("settings") != json.loads(json.dumps(label["settings"])):
        raise InputError(f"{path}: already holds the output of the same verb with other settings; {remedy}")


def _move_into_place(partial: Path, path: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        partial.rename(path)
        return
    names = [file.relative_to(partial) for file in partial.rglob("*") if file.is_file() and file != partial / MANIFEST]
    old = read_json(path / MANIFEST).get("files", {})
    for stale in {Path(name) for name in old} - set(names):
        if not stale.is_absolute() and ".." not in stale.parts:
            (path / stale).unlink(missing_ok=True)
    for name in [*names, Path(MANIFEST)]:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).replace(path / name)
