"""What differs between systems: nothing is needed that another system lacks, and locks hold."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pairloc import platform
from pairloc.errors import InputError
from pairloc.platform import choose_device, locked

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for name in ("fcntl", "resource", "msvcrt"):
    sys.modules[name] = None
import pairloc
failed = []
names = [module.name for module in pkgutil.walk_packages(pairloc.__path__, "pairloc.", onerror=failed.append)]
for name in names:
    if name.endswith("_triton") or name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print(len(names), *failed, sep="\\n")
sys.exit(bool(failed))
"""


def test_everything_imports_without_what_only_some_systems_have() -> None:
    shown = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert int(shown.stdout.split()[0]) > 80


def test_a_second_lock_on_a_path_is_refused_until_the_first_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, "one is enough"):
        with pytest.raises(InputError, match=r"^one is enough$"), locked(path, "one is enough"):
            pytest.fail("two hold the lock")
        with locked(tmp_path / ".other", "refused"):
            pass
    with locked(path, "refused"):
        pass


def test_another_process_is_refused(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from pairloc.platform import locked
with locked(Path({str(tmp_path / ".lock")!r}), "taken"):
    pass
"""
    with locked(tmp_path / ".lock", "here"):
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "InputError: taken" in shown.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_lock_is_let_go_when_its_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / ".lock", "refused"):
        raise ZeroDivisionError
    with locked(tmp_path / ".lock", "refused"):
        pass


def test_a_link_is_no_lock_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    (tmp_path / ".lock").symlink_to(tmp_path / "thesis.txt")
    (tmp_path / ".other").symlink_to(tmp_path / "not there")
    for name in (".lock", ".other"):
        with pytest.raises(InputError, match="cannot be used as a lock"), locked(tmp_path / name, "refused"):
            pytest.fail("locked through a link")
    assert (tmp_path / "thesis.txt").read_text() == "years"
    assert not (tmp_path / "not there").exists()


def test_what_is_in_a_lock_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a process id")
    with locked(tmp_path / ".lock", "refused"):
        pass
    assert (tmp_path / ".lock").read_text() == "a process id"


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "none" / ".lock"
    with pytest.raises(InputError, match="no such file or directory"), locked(path, "refused"):
        pytest.fail("locked nothing")


def test_a_system_without_locks_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fcntl", "msvcrt"):
        monkeypatch.setitem(sys.modules, name, None)
    with locked(tmp_path / ".lock", "refused"), locked(tmp_path / ".lock", "refused"):
        pass


def test_threads_of_one_process_are_refused_too(tmp_path: Path) -> None:
    refused: list[str] = []

    def attempt() -> None:
        try:
            with locked(tmp_path / ".lock", "taken"):
                pass
        except InputError as error:
            refused.append(str(error))

    with locked(tmp_path / ".lock", "here"):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert refused == ["taken"]


@pytest.mark.parametrize("name", ["tpu", "", "CPU", "cuda:7"])
def test_a_device_that_is_not_here_is_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"is not here; use .*cpu.*, or auto"):
        choose_device(name)


def test_devices_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert choose_device("cpu") == "cpu"
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto") == expected
    with pytest.raises(InputError, match="'cuda': is not here"):
        choose_device("cuda")


def test_a_system_that_does_not_say_has_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = platform.peak_memory()
    assert peak is None or peak > 1 << 20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert platform.peak_memory() is None
    monkeypatch.delattr("os.sysconf")
    assert platform.memory() == 8 << 30
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert platform.cores() >= 1
    assert 0 < platform.room_for_tensors() <= platform.memory() // 4
