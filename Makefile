# `make demo` trains a policy, `make test` runs the tests, `make check` also lint, format and types (as CI does),
# `make docs` builds the documentation. Each creates the virtual environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread per process: three test processes share the cores; tests of processes wait half of the time.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-long check format docs reliability clean

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
	$(BIN)/python -m pytest -n 3 --dist loadgroup tests

# Tests that take minutes: chaos, long pauses, soak. One at a time, since they measure.
test-long: $(STAMP)
	TROOP_LONG_TESTS=1 $(BIN)/python -m pytest -m long tests

check: $(STAMP)
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 --dist loadgroup tests

format: $(STAMP)
	$(BIN)/ruff format src tests examples benchmarks docs
	$(BIN)/ruff check --fix src tests examples benchmarks docs

# Warnings and broken internal links are errors. Output: docs/_build/html/index.html
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs docs/_build/html

# Writes docs/reference/reliability.md from the marks of the tests.
reliability: $(STAMP)
	$(BIN)/python docs/_ext/troop_docs/reliability_page.py

clean:
	rm -rf docs/_build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
