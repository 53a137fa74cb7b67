"""The package needs no system-specific module, and locks exclude each other."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from pairloc import platform
from pairloc.errors import InputError
from pairloc.platform import choose_device, locked, mixed_precision

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


def test_every_module_imports_without_system_specific_modules() -> None:
    result = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[0]) > 80


@pytest.mark.parametrize(
    ("given", "used"), [({}, "1000"), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_waiting_threads_soon_sleep_unless_the_user_wants_otherwise(given: dict[str, str], used: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = "import pairloc, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment | given, check=True
    )
    assert result.stdout.strip() == used


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path, "already locked"):
        with pytest.raises(InputError, match=r"^already locked$"), locked(path, "already locked"):
            pytest.fail("the lock was acquired twice")
        with locked(tmp_path / ".other", "refused"):
            pass
    with locked(path, "refused"):
        pass


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from pairloc.platform import locked
with locked(Path({str(tmp_path / ".lock")!r}), "taken"):
    pass
"""
    with locked(tmp_path / ".lock", "here"):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "InputError: taken" in result.stderr
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_lock_is_released_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / ".lock", "refused"):
        raise ZeroDivisionError
    with locked(tmp_path / ".lock", "refused"):
        pass


def test_a_link_is_rejected_as_a_lock_and_its_target_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    (tmp_path / ".lock").symlink_to(tmp_path / "thesis.txt")
    (tmp_path / ".other").symlink_to(tmp_path / "not there")
    for name in (".lock", ".other"):
        with pytest.raises(InputError, match="cannot be used as a lock"), locked(tmp_path / name, "refused"):
            pytest.fail("locked through a link")
    assert (tmp_path / "thesis.txt").read_text() == "years"
    assert not (tmp_path / "not there").exists()


def test_the_content_of_a_lock_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a process id")
    with locked(tmp_path / ".lock", "refused"):
        pass
    assert (tmp_path / ".lock").read_text() == "a process id"


def test_a_lock_in_a_missing_folder_gives_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "none" / ".lock"
    with pytest.raises(InputError, match="no such file or directory"), locked(path, "refused"):
        pytest.fail("locked in a missing folder")


def test_a_system_without_locks_never_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fcntl", "msvcrt"):
        monkeypatch.setitem(sys.modules, name, None)
    with locked(tmp_path / ".lock", "refused"), locked(tmp_path / ".lock", "refused"):
        pass


def test_a_lock_excludes_other_threads(tmp_path: Path) -> None:
    messages: list[str] = []

    def attempt() -> None:
        try:
            with locked(tmp_path / ".lock", "taken"):
                pass
        except InputError as error:
            messages.append(str(error))

    with locked(tmp_path / ".lock", "here"):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert messages == ["taken"]


@pytest.mark.parametrize("name", ["tpu", "", "CPU", "cuda:7"])
def test_an_unavailable_device_gives_a_one_line_error(name: str) -> None:
    with pytest.raises(InputError, match=r"is not available; use .*cpu.*, or auto"):
        choose_device(name)


def test_available_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert choose_device("cpu") == "cpu"
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert choose_device("auto") == expected
    with pytest.raises(InputError, match="'cuda': is not available"):
        choose_device("cuda")


def test_defaults_on_a_system_that_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = platform.peak_memory()
    assert peak is None or peak > 1 << 20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert platform.peak_memory() is None
    monkeypatch.delattr("os.sysconf")
    assert platform.memory() == 8 << 30
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert platform.cores() >= 1
    assert 0 < platform.room_for_tensors() <= platform.memory() // 4


@pytest.mark.parametrize("native", [True, False])
def test_networks_compute_in_bfloat16_only_where_the_cpu_does(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_f": True, "amx_bf16": native})
    matrix = torch.rand(4, 4)
    with mixed_precision("cpu"):
        assert (matrix @ matrix).dtype == (torch.bfloat16 if native else torch.float32)
