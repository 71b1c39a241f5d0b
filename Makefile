# Two commands: `make demo` trains and shows, `make test` checks. Both set up their own environment.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread a process: test processes that share two cores would wait for each other's threads.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test check format docs clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 5; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "The venv module is missing (Debian: apt-get install python3-venv)"; exit 5; }
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup tests

check: $(STAMP)
	$(BIN)/ruff format --check src tests examples
	$(BIN)/ruff check src tests examples
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup tests

format: $(STAMP)
	$(BIN)/ruff format src tests examples
	$(BIN)/ruff check --fix src tests examples

# Warnings and broken internal links are errors. Output: docs/_build/html/index.html
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs docs/_build/html

clean:
	rm -rf docs/_build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
