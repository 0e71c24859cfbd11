# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow mutants wheel clean
.DEFAULT_GOAL := demo

# A torch that is already in .venv (a GPU build, say) is respected: only its pin is left out.
$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if $(BIN)/python -c 'import torch' 2>/dev/null; then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/zonogpt demo

test: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

# The wheel in an empty environment: minutes.
slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow

# Breaks the transforms one term at a time and checks that the tests notice.
mutants: $(VENV)/.ready
	$(BIN)/python tools/mutants.py

wheel: $(VENV)/.ready
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis zonogpt-demo*.png
