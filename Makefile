# Everything is installed into .venv once; the stamp file marks that.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The tests start many processes; compiled files are worth keeping.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test tests fast lint types stress bench docs package clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   train on scikit-learn's digits with 40 % wrong labels: SGD, SAM, NCSAM as printed, as its authors run it, its control, and SAM with a validation-guided radius"
	@echo "make test   lint, types and tests"
	@echo "make fast   only the quick tests"
	@echo "make stress  stress tests: kills, faults, interrupts and fuzzed inputs; about 25 minutes"
	@echo "make docs   the site in site/, with executed notebooks; works offline"
	@echo "make package  the wheel, installed and tried in a fresh environment; PYTHONS=\"python3.10 python3.13\" selects versions"
	@echo "make bench  one table of time and memory against other tools; the other scripts in benchmarks/ have more, and --quick"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/ncsam compare digits --noise symmetric --rate 0.4 \
	  --optimizers sgd,sam:rho=0.05,ncsam:rho=0.05,ncsam-authors:rho=0.05,sam-length-matched:rho=0.05,sam:rho=validation \
	  --lr 0.05 --weight-decay 0.001 --batch-size 32 --seeds 3 --epochs 40 --out runs/demo

test: lint
	$(MAKE) --no-print-directory --jobs 2 types tests

tests: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not stress"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

stress: $(STAMP)
	$(BIN)/python -m stress
	$(BIN)/python -m pytest -n 2 --dist worksteal -m stress

bench: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/table.py --quick

docs: $(STAMP)
	$(BIN)/python tools/build_notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/check_site.py site

package: $(STAMP)
	$(BIN)/python tools/check_wheel.py --constraint constraints.txt $(PYTHONS)

clean:
	rm -rf $(VENV) build dist site docs/notebooks src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
