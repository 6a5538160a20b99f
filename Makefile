# make demo | test | lint | clean. Each makes the virtual environment it needs; nothing has to be installed by hand.
#   PYTHON=python3.13   another interpreter (3.11 or newer)
#   VENV=.venv313       another place for the environment
#   JAX='jax==0.12.*'   another JAX than the newest that fits
#   ARGS='-k while'     more arguments for pytest or the demo

VENV ?= .venv
JAX ?= jax
PYTHON ?= $(shell .ci/find-python 3.11+)
ARGS ?=
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint clean

demo: $(VENV)/demo.installed
	$(VENV)/bin/python -m lanax demo $(ARGS)

test: $(VENV)/test.installed
	$(VENV)/bin/python -m pytest -n auto $(ARGS)

lint: $(VENV)/test.installed $(VENV)/lint.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/lint-imports

clean:
	rm -rf .venv .venv313 build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo-*.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The marker is newer than pyproject.toml as long as what is installed is what it asks for.
$(VENV)/%.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --upgrade 'pip>=25'
	$(PIP) install '$(JAX)' --editable '.[$*]'
	@touch $@
