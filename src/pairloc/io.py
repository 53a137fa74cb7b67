"""Defensive reading of untrusted files, and atomic writing of results.

This package writes every file through `replacing`: first under a temporary name in the same folder, then renamed.
If the path is a symbolic link, the link itself is replaced, never its target.
"""

import contextlib
import gc
import hashlib
import json
import os
import re
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
REMEDY = "choose another output folder, or delete this one"
_MAX_BYTES = 4 << 30  # far beyond any public data set's annotations; larger files could exhaust the memory
_HASH_THREADS = 4


def read_bytes(path: Path) -> bytes:
    """Read an annotation file; raise an InputError if it is missing, unreadable, empty or larger than 4 GiB."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is not a regular file; give the path of an annotation file")
        if status.st_size > _MAX_BYTES:
            raise InputError(f"{path}: is larger than {_MAX_BYTES >> 30} GiB; this is not an annotation file")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    if not content.strip():
        raise InputError(f"{path}: is empty")
    return content


def read_text(path: Path) -> str:
    """Read an annotation file as UTF-8 text, with or without a byte order mark; raises like `read_bytes`."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if not text.strip():
        raise InputError(f"{path}: is empty")
    return text


def read_json(path: Path) -> Any:
    """Parse a JSON file; the InputError for a syntax error names line and column."""
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
    except ValueError as error:  # text that is not UTF-8, or an integer with thousands of digits
        raise InputError(f"{path}: is not valid JSON ({reason(error)})") from error


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: parsing creates no reference cycles, and looking for them costs a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_xml(path: Path) -> Element:
    """Parse an XML file; a DTD raises an InputError before any entity is expanded or fetched."""

    def refuse(name: str, *_: object) -> None:
        raise InputError(f"{path}: has a DTD (<!DOCTYPE {name[:40]}>), which is not allowed; remove it")

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
    except (AssertionError, LookupError, ValueError) as error:  # such as an unknown encoding
        raise InputError(f"{path}: is not valid XML ({reason(error)})") from error
    return root


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON file that this package wrote and validate it with a pydantic model."""
    from pydantic import ValidationError

    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}") from error


def first_problem(error: Any) -> str:
    """Describe the first error of a pydantic ValidationError: its key, the problem and the value found."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    found = "" if first["type"] in ("missing", "extra_forbidden", "value_error") else f", not {shown(first['input'])}"
    return f"{key}: {problem}{found}" if key else f"{problem}{found}"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write `path` atomically: yield a temporary path, then rename it to `path`; on an exception remove it."""
    digest = hashlib.sha256(path.name.encode()).hexdigest()[:8]  # the name may already have the maximum length
    partial = path.with_name(f".{digest}.partial-{os.getpid()}")
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


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files of processes that were killed; call it only while no other process writes there."""
    for file in folder.rglob(".*"):
        # Ours, and those that safetensors writes beside its file.
        partial = re.fullmatch(r"\.([0-9a-f]{8}\.partial-\d+|tmp[A-Za-z0-9]{6})", file.name)
        if partial and file.is_file() and not file.is_symlink():
            file.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file atomically."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8; line endings stay as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write JSON in one canonical form: UTF-8, a newline at the end; NaN raises a ValueError."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators)
    write_text(path, text + "\n")


def write_array(path: Path, array: "npt.NDArray[Any]") -> None:
    """Write an array as .npy, without pickle."""
    import numpy as np

    with replacing(path) as partial, partial.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Write torch tensors as safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as partial:
        try:
            partial.touch()  # safetensors would create the file readable by its owner only, whatever the umask
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, partial, metadata=metadata)
        except SafetensorError as error:  # such as a full disk
            raise InputError(f"{path}: cannot be written ({error})") from error


def copy_file(source: Path, path: Path) -> None:
    """Copy the content of a file atomically."""
    with replacing(path) as partial:
        shutil.copyfile(source, partial)


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_hashes(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """Hash the files in `names`, by default those of `files_in(folder)`: {relative name: SHA-256}."""
    listed = sorted(files_in(folder) if names is None else names)
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        return dict(zip(listed, pool.map(lambda name: sha256(folder / name), listed), strict=True))


def damaged_files(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Compare files with the hashes of `file_hashes`; one message for every missing or changed file."""
    present = {name for name in hashes if (folder / name).is_file() and not (folder / name).is_symlink()}
    found = file_hashes(folder, present)
    lines = []
    for name, expected in hashes.items():
        if name not in present:
            lines.append(f"{folder / name}: is missing")
        elif found[name] != expected:
            lines.append(f"{folder / name}: has changed since it was written")
    return lines


def files_in(folder: Path) -> list[str]:
    """Sorted relative names of the files below a folder, without hidden ones: those are locks and partial files."""
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def refuse_links(folder: Path) -> None:
    """Raise an InputError if one of our folders is or contains a symbolic link: this package never creates any."""
    if folder.is_symlink():
        raise InputError(f"{folder}: is a symbolic link; remove it, nothing is written through links")
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if Path(base, name).is_symlink():
                raise InputError(f"{Path(base, name)}: is a symbolic link; remove it, nothing is written through links")


def claim_folder(folder: Path, ours: str) -> None:
    """Create a folder for output; raise an InputError if it has links, or files but not our file `ours`."""
    refuse_other_work(folder, lambda existing: (existing / ours).is_file())
    if folder.is_dir():
        refuse_links(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({reason(error)})") from error


def refuse_other_work(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raise an InputError if a folder contains files and `is_ours(folder)` is False; hidden files do not count."""
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; the output needs a folder")
        names = (
            sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
            if folder.is_dir()
            else []
        )
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({reason(error)})") from error
    if names and not is_ours(folder):
        raise InputError(f"{folder}: already contains other files ({names[0]}); {REMEDY}")


def reason(error: BaseException) -> str:
    """Describe an exception in a few words, without repeating the path."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


@contextlib.contextmanager
def output_folder(path: Path, made_by: str, settings: Mapping[str, object]) -> Iterator[Path]:
    """Write a folder of results atomically: yield a temporary folder, then move it to `path` when it is complete.

    The manifest records the verb, its settings and the hash of every file. The same verb with the same settings may
    write again; a folder with any other content raises an InputError before any work is done.
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
        hashes = file_hashes(partial)
        write_json(partial / MANIFEST, label | {"pairloc": __version__, "files": hashes}, indent=1)
        _move_into_place(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_output_of(folder: Path, label: Mapping[str, object]) -> bool:
    """Whether a folder contains this output; raise an InputError if it is from another verb or other settings."""
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    if not isinstance(manifest, dict) or "made_by" not in manifest:
        return False
    if manifest["made_by"] != label["made_by"]:
        raise InputError(f"{folder}: already contains the output of {manifest['made_by']!r}; {REMEDY}")
    if manifest.get("settings") != json.loads(json.dumps(label["settings"])):
        raise InputError(f"{folder}: already contains the output of the same verb with other settings; {REMEDY}")
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
