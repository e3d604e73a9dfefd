# `make demo`, `make check` and `make test` do all the set-up; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Ray starts many processes: without bytecode each would compile every module anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test types suite clean

demo: $(READY)
	@$(BIN)/python -m experiments.demo "runs/demo-$$(date +%Y%m%d-%H%M%S)"

# While one works: all but the tests that start Ray or another process, run whole commands, or take long
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not ray and not subprocess and not command and not slow'

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	+$(MAKE) --no-print-directory -j 2 types suite

types:
	$(BIN)/mypy

suite:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else f"fedsim needs Python 3.11-3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "installing some 200 packages into $(VENV): minutes, once"
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[test]'
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
