"""The house has one direction, and ground truth stays on its side of it."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pairloc"

# A module imports only what stands above it.
ORDER = [
    "__init__", "errors", "io", "progress", "platform", "boxes", "settings", "presets", "images", "datasets", "formats",
    "export", "curation", "executors", "sharing", "detector", "bags", "scores", "inference", "refinement",
    "localization", "evaluation", "weights", "report", "runs", "api", "review", "experiments", "cli", "__main__",
]  # fmt: skip
TRUTH = {"pairloc.datasets.groundtruth"}
TRUTH_NAMES = {"GroundTruth", "read_annotated"}
TARGET_SIDE = ["scores", "inference", "localization/retrain.py", "localization/alternate.py"]
MAY_SEE_TRUTH = [
    "datasets", "formats", "curation", "detector", "localization/transfer.py", "localization/evidence.py",
    "localization/engine.py", "localization/confidence.py", "evaluation", "report", "runs", "experiments", "api.py",
    "cli",
]  # fmt: skip
BARE = ["scores", "inference"]


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


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_follow_the_direction_of_the_house(path: Path) -> None:
    own = ORDER.index(room(path))
    for module, name in imports(path):
        if module == "pairloc":
            other = name if name in ORDER else "__init__"
        elif module.startswith("pairloc."):
            other = module.split(".")[1]
        else:
            continue
        assert ORDER.index(other) <= own, f"{path.name} imports {module}.{name}, which stands below it"


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


def test_the_direction_test_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from pairloc.cli import main\n    import pairloc.datasets.groundtruth\n")
    assert imports(file) == {("pairloc.cli", "main"), ("pairloc.datasets.groundtruth", "")}


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
