# Everything lives in .venv; the stamp makes the second call quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test fast lint types stress bench docs package clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on scikit-learn's digits with 40 % wrong labels: SGD, SAM, NCSAM, and what we recommend"
	@echo "make test   lint, types and all tests"
	@echo "make fast   the quick tests alone"
	@echo "make stress  the campaign of kills, faults, interrupts and hostile inputs; about 20 minutes"
	@echo "make docs   the site, with the notebooks run, in site/; opens without a network"
	@echo "make package  the wheel, installed and used in a fresh environment; PYTHONS=\"python3.10 python3.13\" tries those"
	@echo "make bench  the benchmarks, quickly; each prints ratios measured in one run"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/ncsam compare digits --noise symmetric --rate 0.4 --optimizers sgd,sam,ncsam,sam:rho=validation --seeds 3 --epochs 40 --out runs/demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal

fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

stress: $(STAMP)
	$(BIN)/python -m stress

bench: $(STAMP)
	@for script in $(filter-out benchmarks/timing.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script --quick || exit 1; done

docs: $(STAMP)
	$(BIN)/python tools/build_notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/check_site.py site

package: $(STAMP)
	$(BIN)/python tools/check_wheel.py --constraint constraints.txt $(PYTHONS)

clean:
	rm -rf $(VENV) build dist site docs/notebooks src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
