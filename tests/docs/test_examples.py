"""The examples in the docstrings of the public names run, and the docstrings have the sections a reader expects."""

import doctest
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pairloc
from pairloc.cli.reference_api import public_objects

WITHOUT_EXAMPLE = {"pairloc.inference.Relocalization"}  # a result; see `ClassProblem.solve`
WITHOUT_PARAMETERS = {"pairloc.errors.InputError"}
NAMES = {name.rsplit(".", 1)[-1]: thing for name, thing in public_objects()}


@pytest.mark.parametrize(("name", "thing"), public_objects(), ids=lambda value: value if isinstance(value, str) else "")
def test_examples_run(name: str, thing: Any, workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workshop)
    module = importlib.import_module(thing.__module__)
    names = {**vars(module), **NAMES, "torch": torch, "np": np}
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    (example,) = finder.find(thing, name, module, globs=names)
    assert example.examples or name in WITHOUT_EXAMPLE, "has no example"
    report: list[str] = []
    assert runner.run(example, out=report.append).failed == 0, "".join(report)


@pytest.mark.parametrize(("name", "thing"), public_objects(), ids=lambda value: value if isinstance(value, str) else "")
def test_docstrings_describe_every_parameter(name: str, thing: Any) -> None:
    text = thing.__doc__
    assert name in WITHOUT_PARAMETERS or "Parameters\n" in text or "Attributes\n" in text
    if not isinstance(thing, type):
        assert "Returns\n" in text
        assert "Raises\n" in text
        for parameter in thing.__annotations__:
            assert (
                parameter == "return" or f"{parameter} :" in text or f"{parameter}," in text or f", {parameter}" in text
            )


def test_public_names_are_importable() -> None:
    for name in pairloc.__all__:
        assert getattr(pairloc, name) is NAMES[name]
