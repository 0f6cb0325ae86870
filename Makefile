# Everything runs in .venv, which the first target makes. Linux and macOS.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test lint check bench torture crash bad-bodies models clean venv

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing mlxfleet into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

models: $(STAMP)
	@$(BIN)/python scripts/make_models.py --out .models

demo: models
	@$(BIN)/python scripts/demo.py

# Two files at a time: most tests wait for processes of their own. WORKERS=0 runs them in this one.
WORKERS ?= 2
test: models
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint
	@$(BIN)/python -m pytest tests/architecture tests/unit

bench: models
	@$(BIN)/python -m tests.bench

# Real models under a kernel memory limit that kills; needs root on Linux. GUARD: on, off or both.
TORTURE_SECONDS ?= 300
SEED            ?= 1
GUARD           ?= both
torture: models
	@$(BIN)/python -m tests.torture --seconds $(TORTURE_SECONDS) --seed $(SEED) --guard $(GUARD)

# Engines killed with -9 while they serve and write; a block that is trusted is right, or this fails.
CRASHES ?= 200
crash: models
	@$(BIN)/python -m tests.crash --kills $(CRASHES) --seed $(SEED)

# Requests that cannot be served, at a real fleet; CI sends 2,000 of them.
BAD_BODIES ?= 10000
bad-bodies: models
	@MLXFLEET_BAD_BODIES=$(BAD_BODIES) SEED=$(SEED) $(BIN)/python -m pytest -s --timeout 1200 tests/behaviour/gateway/test_gateway_bad_bodies.py

clean:
	rm -rf $(VENV) .models .mlxfleet build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
