"""Untrusted files are read defensively; results are written whole or not at all.

Everything that this package writes goes through `replacing`: to a temporary name beside the file, renamed at the end.
A symbolic link in the file's place is replaced, never followed.
"""

import contextlib
import gc
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from pairloc import __version__
from pairloc.errors import InputError, shown

if TYPE_CHECKING:
    import numpy.typing as npt
    from pydantic import BaseModel
    from torch import Tensor

Model = TypeVar("Model", bound="BaseModel")
MANIFEST = "manifest.json"
REMEDY = "name another output folder, or delete this one"
_LARGEST = 4 << 30  # no annotation file of any known data set comes near; beyond it memory would
_THREADS = 4  # that hash files


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


def read_model(path: Path, model: type[Model]) -> Model:
    """A JSON file that this package wrote, checked against the model of what belongs into it."""
    from pydantic import ValidationError

    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}") from error


def first_problem(error: Any) -> str:
    """The first finding of a pydantic ValidationError, with the key it is about."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    said = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] in ("missing", "extra_forbidden", "value_error") else f", not {shown(first['input'])}"
    return f"{key}: {said}{found}" if key else f"{said}{found}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to: renamed to `path` when all went well, removed when it did not."""
    short = hashlib.sha256(path.name.encode()).hexdigest()[:8]  # a name may already be as long as the system allows
    partial = path.with_name(f".{short}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        yield partial
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason(error)})") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with the line ends it has."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write JSON of one spelling: UTF-8, no NaN, a newline at the end."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators)
    write_text(path, text + "\n")


def write_array(path: Path, array: "npt.NDArray[Any]") -> None:
    """Write an array as .npy."""
    import numpy as np

    with replacing(path) as partial, partial.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Write torch tensors as safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as partial:
        try:
            partial.touch()  # with the permissions that files have here; safetensors would keep it to its owner
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, partial, metadata=metadata)
        except SafetensorError as error:  # a full disk, for one
            raise InputError(f"{path}: cannot be written ({error})") from error


def copy_file(source: Path, path: Path) -> None:
    """Copy the content of a file."""
    with replacing(path) as partial:
        shutil.copyfile(source, partial)


def sha256(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def ledger(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """The hash of every file below a folder by its name, or of those named; hidden files are not counted."""
    listed = sorted(files_in(folder) if names is None else names)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(listed, pool.map(lambda name: sha256(folder / name), listed), strict=True))


def damaged(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """A line for every file of a ledger that is gone or is not what was written."""
    there = {name for name in hashes if (folder / name).is_file() and not (folder / name).is_symlink()}
    found = ledger(folder, there)
    lines = []
    for name, expected in hashes.items():
        if name not in there:
            lines.append(f"{folder / name}: is gone")
        elif found[name] != expected:
            lines.append(f"{folder / name}: is not what was written")
    return lines


def files_in(folder: Path) -> list[str]:
    """The names of the files below a folder, with forward slashes; hidden ones are locks and unfinished work."""
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def refuse_links(folder: Path) -> None:
    """Raise an InputError where a symbolic link lies below a folder of ours: somebody put it there."""
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if Path(base, name).is_symlink():
                raise InputError(f"{Path(base, name)}: is a symbolic link; remove it, nothing is written through links")


def claim_folder(folder: Path, ours: str) -> None:
    """Make a folder to write into: a new or empty one, or one that holds our file `ours`; without links in it."""
    refuse_other_work(folder, lambda there: (there / ours).is_file())
    if folder.is_dir():
        refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({reason(error)})") from error


def refuse_other_work(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raise an InputError where a folder holds something that is not ours; a new or empty one is welcome."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; the output needs a folder")
        there = (
            sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
            if folder.is_dir()
            else []
        )
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({reason(error)})") from error
    if there and not is_ours(folder):
        raise InputError(f"{folder}: already holds other work ({there[0]}); {REMEDY}")


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
    refuse_other_work(named, lambda folder: _is_output_of(folder, label))
    refuse_links(path)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{named}: cannot be written to ({reason(error)})") from error
    try:
        yield partial
        hashes = ledger(partial)
        write_json(partial / MANIFEST, label | {"pairloc": __version__, "files": hashes}, indent=1)
        _move_into_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_output_of(folder: Path, label: Mapping[str, object]) -> bool:
    """Whether a folder holds an output; one of another verb or of other settings is refused by name."""
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    if not isinstance(manifest, dict) or "made_by" not in manifest:
        return False
    if manifest["made_by"] != label["made_by"]:
        raise InputError(f"{folder}: already holds the output of {manifest['made_by']!r}; {REMEDY}")
    if manifest.get("settings") != json.loads(json.dumps(label["settings"])):
        raise InputError(f"{folder}: already holds the output of the same verb with other settings; {REMEDY}")
    return True


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
