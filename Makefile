# `make demo` and `make test` need Python 3.11 or newer, git and make: nothing else, and no C compiler.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast test-gpu test-long lint types lit pytest format clean

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# --no-build-isolation: the setuptools of constraints-dev.txt builds, not whichever is newest today.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CONSTRAINTS := -c constraints-dev.txt

help:
	@echo 'make demo       compile a small GPT-2 with backend="tilewright", check it against eager, print times'
	@echo 'make test       everything that CI runs: ruff, pyright, lit, pytest'
	@echo 'make test-fast  a subset in under one minute: ruff, lit, the quick part of pytest'
	@echo 'make test-gpu   the numerics suite on a CUDA machine: what the tests compute, computed there'
	@echo 'make test-long  what takes minutes each: byte identity of whole models, a thousand recompilations'
	@echo 'make format     let ruff rewrite the files'
	@echo 'make clean      remove .venv and build'

# torch first and pinned: resolved as a dependency, pip would take the newest release there is.
$(VENV)/.runtime: pyproject.toml constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is older than Python 3.11: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(CONSTRAINTS) torch numpy setuptools
	$(PIP) install $(CONSTRAINTS) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) install $(CONSTRAINTS) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(VENV)/.runtime
	$(BIN)/python examples/demo.py

test: lint types lit pytest

test-fast: lint lit
test-fast: PYTEST_ARGS := -m 'not slow'
test-fast: pytest

test-long: PYTEST_ARGS := --long
test-long: pytest

test-gpu: PYTEST_ARGS := --device cuda
test-gpu: JOBS := 8
test-gpu: pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/pyright --project pyproject.toml

lit: $(VENV)/.dev
	$(BIN)/lit --workers $(JOBS) --order=lexical --verbose lit_tests

pytest: $(VENV)/.dev
	$(BIN)/pytest --numprocesses $(JOBS) --dist worksteal $(PYTEST_ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build
