# Each target is one command that also does its own set-up, in a local .venv.
# It needs make and Python 3.11 or newer; another one: make test PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check

CODE   := aiops protocol cli tests $(wildcard benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help demo test format lint types layers docs fuzz bench bench-all-reduce sim mutants chaos conservation soak kill-matrix local-sgd ring-matrix ring-kills codec-sweep clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1	/p' Makefile

# --- set-up: one marker file per set of extras, made again when pyproject.toml changes ---

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "aiops needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) has no venv module (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing aiops with the digits extra into $(VENV) (once)"
	@$(PIP) --editable '.[digits]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing aiops with the developers' tools into $(VENV) (once)"
	@$(PIP) --editable '.[digits,dev]'
	@touch $@ $(VENV)/.demo

# --- for everyone ---

demo: $(VENV)/.demo  ## train handwritten digits on a local cluster: 2 servers, 4 workers
	@$(BIN)/aiops train mlp --data digits --servers 2 --workers 4

bench: $(VENV)/.demo  ## push and pull between two processes, against a raw socket
	@$(BIN)/aiops bench push-pull

$(VENV)-peers/.done: | $(BIN)/python
	@echo "installing torch and MPI into $(VENV)-peers (once; 1 GB): only to be compared with"
	@$(PYTHON) -m venv $(VENV)-peers
	@$(VENV)-peers/bin/python -m pip install --quiet --disable-pip-version-check numpy torch mpi4py mpich
	@touch $@

bench-all-reduce: $(VENV)/.demo $(VENV)-peers/.done  ## all-reduce over TCP and shared memory, against raw sockets, gloo and MPI
	@$(BIN)/aiops bench all-reduce --python $(VENV)-peers/bin/python

# --- for developers ---

test: $(VENV)/.dev  ## all that CI runs: format, lint, types, layers, tests
	@$(BIN)/ruff format --check --quiet --output-format concise $(CODE) || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet --output-format concise $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

format: $(VENV)/.dev  ## rewrite the code in the house format
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

lint: $(VENV)/.dev  ## ruff
	@$(BIN)/ruff check $(CODE)

types: $(VENV)/.dev  ## mypy strict
	@$(BIN)/mypy

layers: $(VENV)/.dev  ## who may import whom
	@$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev  ## write the reference pages from the code
	@$(BIN)/python docs/reference/generate.py

fuzz: export AIOPS_FUZZ_FRAMES ?= 1000000
fuzz: export AIOPS_FUZZ_PAYLOADS ?= 1000000
fuzz: $(VENV)/.dev  ## the protocol against a million mutated frames, and payloads for each codec
	@$(BIN)/python -m pytest tests/protocol -k fuzz -o faulthandler_timeout=0

sim: export AIOPS_SEEDS ?= 1000
sim: $(VENV)/.dev  ## AIOPS_SEEDS simulated clusters per scenario, under faults (a thousand)
	$(BIN)/aiops simulate --seeds $(AIOPS_SEEDS)

mutants: $(VENV)/.dev  ## plant bugs, each of which the simulator must find from seed 0 on
	$(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/simulation/test_mutants.py --all-mutants -q -s

chaos: $(VENV)/.dev  ## train digits over cuts, jitter and black holes; minutes
	AIOPS_TEST_GUARD_S=3600 $(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/integration/test_chaos_training.py --chaos -q -s

conservation: $(VENV)/.dev  ## five rounds of real processes that are killed and cut off: each push counts once
	$(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/integration/test_real_conservation.py --conservation -q -s

soak: $(VENV)/.dev  ## 100,000 pushes and 5,000 reconnections: nothing may pile up; minutes
	AIOPS_TEST_GUARD_S=3600 $(BIN)/python -m pytest -o faulthandler_timeout=3600 tests/integration/test_soak.py --soak -q -s

kill-matrix: $(VENV)/.dev  ## kill, stop and end each kind of process; what the others see
	$(BIN)/python -m pytest tests/integration/test_kill_matrix.py --kill-matrix -q

local-sgd: $(VENV)/.dev  ## local steps beside training in every step, five seeds each
	$(BIN)/python -m pytest tests/trainers/test_local_training.py --local-sgd -q -s

ring-matrix: $(VENV)/.dev  ## a fault at each step of rings of two to eight members, in simulation and in shared memory
	$(BIN)/python -m pytest tests/simulation/test_ring_matrix.py tests/collective/test_shared_steps.py tests/integration/test_hosts_steps.py tests/integration/test_ring_sequences.py --ring-matrix -q -o faulthandler_timeout=0

ring-kills: $(VENV)/.dev  ## two hundred times SIGKILL for one of four members of a ring of processes; SIGSTOP in each phase
	$(BIN)/python -m pytest tests/integration/test_ring_kills.py tests/integration/test_ring_stops.py --ring-kills -q -s -o faulthandler_timeout=0

codec-sweep: $(VENV)/.dev  ## every codec on the digits against dense, over five seeds
	$(BIN)/python -m pytest tests/numerics/test_codec_digits.py --codec-sweep -q -o faulthandler_timeout=0

clean:  ## remove the environment and every cache
	rm -rf $(VENV) $(VENV)-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
