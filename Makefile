PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint format lock clean

help:
	@echo 'make demo    runs the demo            make test    runs the tests (ARGS="-k vote")'
	@echo 'make lint    ruff and mypy, no edits  make format  lets ruff fix and format'
	@echo 'make lock    renews requirements.lock (ARGS=--upgrade for newer releases)'
	@echo 'make clean   removes .venv and caches'

demo: $(READY)
	@$(BIN)/playcall demo $(ARGS)

test: $(READY)
	@$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Only locked, hashed packages, then the project itself without looking for anything.
$(READY): requirements.lock pyproject.toml
	@$(check-python)
	@echo 'Installing playcall and its locked dependencies into .venv: about a minute, once.'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# uv resolves once for every supported Python and system; --no-config keeps local settings out of the file.
lock:
	@$(check-python)
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq --disable-pip-version-check 'uv>=0.9'
	@build/lock/bin/uv pip compile -q pyproject.toml --group dev --no-config --universal --generate-hashes \
		--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
		-o requirements.lock $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find strategies calibration portfolio evals tests -name __pycache__ -type d -prune -exec rm -rf {} +

define check-python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	found=$$($(PYTHON) --version 2>/dev/null) || found='not there'; \
	echo "playcall needs Python 3.11 or newer: $(PYTHON) is $$found." \
	'Name another one: make demo PYTHON=python3.12' >&2; exit 1; }
endef
