# The only words a newcomer needs: `make demo` and `make test`. Everything is set up on the way:
# Python 3.11+, git and make are enough. A repeated `make setup` does nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard proto/holdover/*/*.proto)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Each stamp is newer than what it was made from.
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed
STUBS := $(VENV)/.stubs
BENCH_LOCKED := $(VENV)/.bench-locked

# Seeds of `make soak`, and the interpreters that `make determinism` compares with this one.
SEEDS ?= 20000
PYTHONS ?= python3.12 python3.13
# Files of tests that run side by side; tests of real processes wait for most of their time.
# `make test WORKERS=0` runs one test after the other.
WORKERS ?= 2
# How long `make chaos` kills processes.
DURATION ?= 30 min
# How often `make containers-rounds` repeats what it measures.
ROUNDS ?= 20

.PHONY: setup demo test lint format bench soak every-step chaos containers-rounds determinism proto docs clean
.DEFAULT_GOAL := setup

setup: $(INSTALLED) $(STUBS)

$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "holdover needs Python 3.11 or newer, and '$(PYTHON)' is not (or is missing);" \
	    "name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "cannot make $(VENV): is the venv module of '$(PYTHON)' installed (python3-venv)?" >&2; \
	  exit 1; }
	$(PIP) install --quiet -r requirements.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml hatch_build.py
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $(STUBS) $@

$(STUBS): $(INSTALLED) $(PROTOS)
	$(BIN)/python hatch_build.py >/dev/null
	@touch $@

$(BENCH_LOCKED): $(INSTALLED) requirements-bench.lock
	$(PIP) install --quiet -r requirements-bench.lock
	@touch $@

demo: setup
	$(BIN)/holdover demo

# ARGS passes options on, for example: make test ARGS="tests/unit -x"
test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup $(BENCH_LOCKED)
	$(BIN)/python -m benchmarks $(ARGS)

# Simulated clusters, each with jobs, options and faults of its own. A seed that breaks an invariant
# is told with the line that repeats it.
soak: setup
	$(BIN)/holdover simulate swarm --seeds 0..$$(($(SEEDS) - 1)) --jobs $$(nproc) $(ARGS)
	$(BIN)/holdover simulate swarm-double --seeds 0..$$(($(SEEDS) - 1)) --jobs $$(nproc) $(ARGS)
	$(BIN)/holdover simulate swarm-external --seeds 0..$$(($(SEEDS) - 1)) --jobs $$(nproc) $(ARGS)

# A leader, or a worker, dies after each single step of its own, and again in the recovery: what
# `make test` does with every so-many-th step. It takes about an hour.
every-step: setup
	HOLDOVER_EVERY_STEP=1 $(BIN)/python -m pytest -rA tests/simulation/test_death_at_every_step.py $(ARGS)

# TPC-H jobs on local processes that are killed every few seconds; each result is DuckDB's, or it fails.
chaos: setup
	$(BIN)/holdover chaos --duration "$(DURATION)" $(ARGS)

# Leaders in containers are killed, paused, stopped and cut off, ROUNDS times each: half an hour.
containers-rounds: setup
	CONTAINER_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest -rA tests/containers/test_leader_election.py $(ARGS)

# The same seeds in other versions of Python must leave the same traces.
determinism: setup
	@$(BIN)/python -m tests.simulation.digests 0 19 > $(VENV)/digests.txt
	@for python in $(PYTHONS); do \
	  venv=.venv-$$(basename $$python); \
	  $$python -m venv $$venv && $$venv/bin/python -m pip install --quiet -r requirements.lock && \
	  $$venv/bin/python -m tests.simulation.digests 0 19 > $$venv/digests.txt && \
	  cmp $(VENV)/digests.txt $$venv/digests.txt && echo "$$python: the same 20 traces" || exit 1; \
	done

proto: $(INSTALLED)
	$(BIN)/python hatch_build.py
	@touch $(STUBS)

docs: setup
	$(BIN)/python -m holdover.config > docs/configuration.md
	$(BIN)/python -m jobmanager.scheduler.state_diagrams > docs/states.md

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f holdover/*/*_pb2*.py holdover/*/*_pb2*.pyi
