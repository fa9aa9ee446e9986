# `make demo` and `make test` set up all they need in .venv on a machine that has Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo lint test test-all docs format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Shoal needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml
	$(PIP) -e '.[plot,tensorboard]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) 'pip>=25.1' # the first that knows dependency groups
	$(PIP) -e '.[plot,tensorboard,video,evolution,bridges,cluster,storage,ui,onnx]' --group dev
	@touch $@

setup: $(VENV)/.dev ## Install everything that development needs

demo: $(VENV)/.installed ## Train a team in a few minutes and watch it play
	$(BIN)/shoal train demo

lint: $(VENV)/.dev ## Formatting, style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

test: lint ## Everything that must pass before a change lands
	$(BIN)/pytest -n auto --dist worksteal -m 'not slow'

test-all: lint ## `make test` and the long ones
	$(BIN)/pytest -n auto --dist worksteal

docs: $(VENV)/.dev ## Build the site from docs/ into build/site
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/site
	@echo "open build/site/index.html"

format: $(VENV)/.dev ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and caches
	rm -rf $(VENV) build .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
