# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lowest mutants release clean
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

# The wheels in an empty environment: minutes.
slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow

# Breaks the transforms one term at a time and checks that the tests notice.
mutants: $(VENV)/.ready
	$(BIN)/python tools/mutants.py

# Fast tests with the lowest versions that pyproject.toml allows, in an environment of their own: some gigabytes.
lowest:
	$(PYTHON) tools/lowest.py

# Builds both distributions, tries them in an empty environment, says what would be uploaded. Uploads nothing.
release: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python tools/release.py

clean:
	rm -rf $(VENV) .venv-lowest build dist checker/build src/*.egg-info checker/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis zonogpt-demo*.png
