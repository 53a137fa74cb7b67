"""The pages of the documentation: their commands run, their code runs, their links lead somewhere.

A fenced block of `sh` is run line by line on generated scenes, each page in a folder of its own. A block whose opening
line says more than `sh`, such as "sh needs a GPU", needs what cannot be shipped: its commands are checked but not run.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pairloc.cli.reference import commands
from runs.calling import call

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CARDS = sorted((ROOT / "src").rglob("CARD.md"))
TINY = ("image_size=64", "pyramid=16", "levels=2", "roi=3", "head=32", "sampled_rois=16", "epochs=1", "anchor=16")
SMALLER = {  # what a command gets besides, so that it takes seconds
    "pairloc propose train": [part for change in TINY for part in ("--set", change)],
    "pairloc detect train": ["--set", "epochs=1", "--set", "batch=4", "--set", "frozen=true"],
    "pairloc run": [],
}


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    condition: str  # what the block needs besides scenes
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(text[: match.start()].count("\n") + 1, match[1], match[2].strip(), match[3])


def shell_lines(block: Block) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line.split(" #")[0].strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


KNOWN = dict(commands())


def known_command(words: list[str]) -> str:
    """The name of the command that words begin with; its options are checked."""
    for length in (3, 2):
        name = " ".join(words[:length])
        if name in KNOWN:
            options = {option for parameter in KNOWN[name].params for option in parameter.opts} | {"--help"}
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            assert given <= options, f"{name} has no option {given - options}"
            return name
    raise AssertionError(f"there is no command {' '.join(words[:3])!r}")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks(page):
        assert block.language or "pairloc " not in block.text, f"{page.name}:{block.line}: commands need a language"
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")
        for line in shell_lines(block) if block.language == "sh" else ():
            words = shlex.split(line)
            while "=" in words[0]:  # variables
                words = words[1:]
            program = Path(words[0]).name
            if program == "pairloc":
                known_command(["pairloc", *words[1:]])
            elif program == "make":
                assert f"\n{words[1]}:" in makefile, line
            elif program in ("python", "python3") and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file(), line
            else:
                assert program in ("git", "pip", "python", "python3", "tar", "cd", "ls", "ray"), line
    for inline in re.findall(r"(?<!`)`(pairloc [a-z][^`]*)`(?!`)", page.read_text(encoding="utf-8")):
        words = inline.split()
        if any(name.split()[1] == words[1] for name in KNOWN):
            prefix = " ".join(words)
            if not any(name.startswith(prefix) for name in KNOWN):  # a group by itself is fine
                known_command(words)
        else:
            raise AssertionError(f"there is no command {inline!r}")


@pytest.mark.parametrize("page", [*PAGES, *CARDS], ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else page.parent / path
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("sh", "python", "toml") and not block.condition]


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=relative)
def test_commands_run(page: Path, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workshop)
    for block in runnable(page):
        where = f"{relative(page)}:{block.line}"
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            exec(compile(block.text, where, "exec"), {"__name__": "page"})
        else:
            for line in shell_lines(block):
                run(line, where)


def run(line: str, where: str) -> None:
    """Run a command of a page in this process; `make` and installations are CI's own work."""
    words = shlex.split(line)
    if Path(words[0]).name != "pairloc":
        assert words[0] in ("make", "pip", "git", "ls"), f"{where}: {line}"
        return
    name = known_command(["pairloc", *words[1:]])
    answer = call(*words[1:], *SMALLER.get(name, []))
    assert answer.status == 0, f"{where}: {line}\n{answer.text}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES[2:]:
        if page.parent.name != "experiments" and page.name != "README.md":
            assert f"({page.relative_to(ROOT / 'docs').as_posix()})" in index, page


def test_readme_and_results_are_short() -> None:
    for name, limit in (("README.md", 700), ("docs/results.md", 600)):
        assert len((ROOT / name).read_text().split()) <= limit, name


def test_docs_say_image() -> None:
    for page in [*PAGES, *CARDS]:
        found = re.findall(r"(?i)\b(pictures?|photographs?)\b", page.read_text(encoding="utf-8"))
        assert not found, (relative(page), found)
