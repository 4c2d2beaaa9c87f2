# `make demo` and `make test` work on a fresh clone with only python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Touch-files: installing again only when the dependencies change. --no-compile: only what is imported is compiled.
INSTALLED := $(VENV)/.installed
INSTALLED_TEST := $(VENV)/.installed-test

# torch stays out of the environment that types are checked in.
RECORD := .venv-record
INSTALLED_RECORD := $(RECORD)/.installed

.PHONY: board calibration demo test lint types layers unit test-slow test-record bench docs format clean

demo: $(INSTALLED)
	$(BIN)/clusterloom sweep workloads/sweeps/demo.yaml --out demo-output

test: lint types layers unit

lint: $(INSTALLED_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED_TEST)
	$(BIN)/mypy

layers: $(INSTALLED_TEST)
	$(BIN)/lint-imports

unit: $(INSTALLED_TEST)
	$(BIN)/pytest -n $(WORKERS)

test-slow: $(INSTALLED_TEST)
	$(BIN)/pytest -n $(WORKERS) -m "slow or not slow"

# A small real recording of torch.distributed on this machine, and its prediction.
test-record: $(INSTALLED_RECORD)
	$(RECORD)/bin/python -m pytest tests/record

# One table of costs beside those of other simulators; run it on a quiet machine.
bench: $(INSTALLED_TEST)
	$(BIN)/python -m tests.perf.report

# The accuracy boards on published training runs and collectives; minutes.
board: $(INSTALLED)
	$(BIN)/clusterloom validate runs --markdown docs/explanation/accuracy_training_runs.md
	$(BIN)/clusterloom validate collectives --markdown docs/explanation/accuracy_collectives.md

# The default calibration from the published runs: cited values stay, fitted ones are fitted anew. Minutes; without
# --warm, and with two rounds, nothing of the present file is used but its cited values.
calibration: $(INSTALLED)
	$(BIN)/clusterloom calibrate runs measurements/training_runs.csv --scratch --warm --rounds 1 \
	  -o topologies/calibrations/default.yaml

# Generated reference pages, the outputs of the examples, and the notebooks that pair with scripts.
docs: $(INSTALLED_TEST)
	$(BIN)/python docs/generate_reference.py
	$(BIN)/python docs/run_examples.py
	$(BIN)/python docs/pair_notebooks.py

format: $(INSTALLED_TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(RECORD) build dist demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "clusterloom needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable .
	touch $@

$(INSTALLED_TEST): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[test]"
	touch $@ $(INSTALLED)

$(INSTALLED_RECORD): pyproject.toml
	$(PYTHON) -m venv $(RECORD)
	$(RECORD)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[test-record]"
	touch $@
