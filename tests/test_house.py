"""The house has one direction, ground truth stays on its side of it, and what is written about it is so."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pairloc"

# A module imports only what stands above it.
ORDER = [
    "__init__", "errors", "io", "progress", "platform", "boxes", "settings", "migration", "presets", "images",
    "datasets", "formats", "curation", "executors", "detector", "bags", "scores", "inference", "refinement",
    "localization", "evaluation", "weights", "report", "runs", "api", "review", "experiments", "cli", "__main__",
]  # fmt: skip
NOT_BUILT = {"review"}  # rooms that are planned; take a name out when its room is there
TRUTH = {"pairloc.datasets.groundtruth"}
TRUTH_NAMES = {"GroundTruth", "read_annotated"}
TARGET_SIDE = [
    "scores", "inference", "localization/retrain.py", "localization/alternate.py", "localization/class_view.py",
    "localization/methods.py", "localization/result.py", "localization/target.py",
]  # fmt: skip
MAY_SEE_TRUTH = [
    "datasets", "formats", "curation", "detector", "localization/transfer.py", "localization/evidence.py",
    "localization/engine.py", "localization/calibration.py", "localization/playing.py",
    "evaluation", "report", "runs", "experiments", "api.py",
    "cli",
]  # fmt: skip
BARE = ["scores", "inference"]
LONGEST = 400  # lines
# What can be added, and the registry it gets a line in: (file, name).
REGISTRIES = {
    "solver": ("inference/solve.py", "SOLVERS"),
    "pair score": ("scores/__init__.py", "PAIR_FUNCTIONS"),
    "format": ("formats/reading.py", "FORMATS"),
    "backbone": ("detector/backbones.py", "BACKBONES"),
    "evidence term": ("localization/evidence.py", "TERMS"),
    "refinement": ("refinement/__init__.py", "CHAIN"),
    "method": ("localization/methods.py", "METHODS"),
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[tuple[str, str]]:
    """(module, name) of everything a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports by full name"
            found |= {(node.module or "", alias.name) for alias in node.names}
    return found


def room(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


def is_in(path: Path, places: list[str]) -> bool:
    relative = path.relative_to(SOURCE).as_posix()
    return any(relative == place or relative.startswith(f"{place}/") for place in places)


def below(own: str, found: set[tuple[str, str]]) -> list[str]:
    """What a room imports and may not: `pairloc` itself gives its version and, to type checkers, the public names."""
    wrong = []
    for module, name in sorted(found):
        if module == "pairloc":
            other = name if name in ORDER else "__init__"
        elif module.startswith("pairloc."):
            other = module.split(".")[1]
        else:
            continue
        if ORDER.index(other) > ORDER.index(own):
            wrong.append(f"{module}.{name}")
    return wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_follow_the_direction_of_the_house(path: Path) -> None:
    if path == SOURCE / "__init__.py":  # for type checkers alone; see the test that it imports nothing heavy
        assert {module for module, _ in imports(path) if module.startswith("pairloc.")} <= {
            "pairloc.api", "pairloc.formats.reading", "pairloc.localization.result",
        }  # fmt: skip
        return
    assert below(room(path), imports(path)) == [], path


def test_every_room_is_in_the_order_and_every_name_in_the_order_is_a_room() -> None:
    rooms = {room(path) for path in modules()}
    assert rooms - set(ORDER) == set()
    assert set(ORDER) - rooms <= NOT_BUILT
    assert len(ORDER) == len(set(ORDER))
    for places in (TARGET_SIDE, MAY_SEE_TRUTH, BARE):
        assert [place for place in places if not (SOURCE / place).exists()] == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_ground_truth_is_seen_only_by_those_who_may(path: Path) -> None:
    sees = {
        f"{module}.{name}" for module, name in imports(path) if module in TRUTH or name in {*TRUTH_NAMES, "groundtruth"}
    }
    if is_in(path, TARGET_SIDE) or not is_in(path, MAY_SEE_TRUTH):
        assert not sees


def test_scores_and_inference_need_torch_and_numpy_alone() -> None:
    allowed = {"torch", "numpy", "triton", "pairloc", *sys.stdlib_module_names}
    for path in modules():
        if is_in(path, BARE):
            assert {module.split(".")[0] for module, _ in imports(path)} <= allowed, path


# A machine that has nothing but torch and numpy: whoever asks for something else does not find it.
BARE_MACHINE = """
import sys
hidden = {"pydantic", "PIL", "safetensors", "typer", "rich", "yaml", "timm", "torchvision", "matplotlib", "tensorboard"}
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
import numpy, torch
from pairloc.inference import ClassProblem, PairTable
unary, table = torch.zeros(6, 4), torch.randn(6, 6, 4, 4)
found = ClassProblem(unary, PairTable(table)).solve(k=2)
print(sorted(name for name in sys.modules if name.split(".")[0] in hidden), len(found.selection))
"""


def test_scores_and_inference_run_where_nothing_else_is_installed() -> None:
    names = []
    for path in modules():
        if is_in(path, BARE) and "triton" not in path.stem:
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            names.append(".".join(parts).removesuffix(".__init__"))
    assert len(names) > 15
    done = subprocess.run([sys.executable, "-c", BARE_MACHINE, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "[] 6\n"


def test_the_direction_test_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from pairloc.cli import main\n    import pairloc.datasets.groundtruth\n")
    assert imports(file) == {("pairloc.cli", "main"), ("pairloc.datasets.groundtruth", "")}
    assert below("scores", imports(file)) == ["pairloc.cli.main"]
    assert below("boxes", imports(file)) == ["pairloc.cli.main", "pairloc.datasets.groundtruth."]


def test_no_pickle_eval_or_shell() -> None:
    for path in modules():
        names = {module.split(".")[0] for module, _ in imports(path)}
        assert not names & {"pickle", "marshal", "shelve", "dill", "joblib"}, path
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"eval", "exec"}, path
        assert "shell=True" not in path.read_text(), path


def test_no_file_is_too_long_to_be_read() -> None:
    assert {path.name: count for path in modules() if (count := path.read_text().count("\n")) > LONGEST} == {}


def contributing() -> dict[str, tuple[str, str, str]]:
    """The table of CONTRIBUTING.md, `| a solver | `FILE` | `NAME` in `FILE` |`: by what is added, its three cells."""
    rows = {}
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) >= 3:
            named = re.fullmatch(r"`(\w+)` in `([^`]+)`.*", cells[2])
            if named:
                rows[re.sub(r"^(a|an) ", "", cells[0])] = (cells[1], named[1], named[2])
    return rows


@pytest.mark.parametrize("what", REGISTRIES)
def test_the_list_of_what_can_be_added_is_so(what: str) -> None:
    """CONTRIBUTING.md names the registry and its file; both are there, and the registry has something in it."""
    rows = contributing()
    assert what in rows, f"CONTRIBUTING.md has no row for {what}"
    place, name, file = rows[what]
    assert (file, name) == REGISTRIES[what]
    assert (SOURCE / file).is_file()
    module = ".".join(("pairloc", *Path(file).with_suffix("").parts)).removesuffix(".__init__")
    assert len(getattr(importlib.import_module(module), name)) > 0
    for folder in re.findall(r"`([\w/]+)/NAME\.py`", place):
        assert (SOURCE / folder).is_dir(), place
    for own in re.findall(r"`([\w/]+\.py)`", place):
        assert "NAME" in own or (SOURCE / own).is_file(), place
