# One command per intent. Nothing is needed but make and Python 3.11 or newer:
# the first target that is run makes the virtual environment, later ones find it ready.
#
#   PYTHON      the interpreter (default python3); python3.12 gets an environment of its own
#   VENV        where the environment lies (default .venv, or .venv-$(PYTHON) for a named one)
#   ARGS        passed on to the program of the target (`make test ARGS="-k lost_response"`)
#   SEED        the workload and the faults of `make chaos`
#   SECONDS     how long they go on
#   JOBS        test processes at once (default: two more than cores, since most tests wait)
#   DURATIONS   where `make test` writes what each file of tests takes (tests/durations.txt is such)
#   UV          the resolver of `make lock`; nothing else uses it

PYTHON ?= python3
VENV ?= .venv$(patsubst %,-%,$(filter-out python3 python,$(notdir $(PYTHON))))
ARGS ?=
SEED ?= 1
SECONDS ?= 60
JOBS ?= $(shell "$(PYTHON)" -c 'import os; print((os.cpu_count() or 1) + 2)' 2>/dev/null || echo auto)
UV ?= uv
export DURATIONS

# Dozens of processes import the same modules: whoever has switched the cache of their bytecode off
# for a machine would compile them in each.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
READY := $(VENV)/.ok
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := requirements.lock
CODE := $(wildcard app contracts adapters chaos bench tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test up check fmt chaos matrix bench mutate audit lock venv clean

help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

demo: $(READY) ## the proof: real processes, real SIGKILL, one effect at the target
	@$(BIN)/effect-broker demo main $(ARGS)

test: $(READY) ## every test; the last lines name those that could not run here
	@$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

up: $(READY) ## a broker on this machine, with a key and a request to paste
	@$(BIN)/effect-broker up $(ARGS)

check: $(READY) ## format, lint, types, arrows, and the repository's own rules
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "make fmt formats these files"; exit 1; }
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/pytest --quiet tests/repository $(ARGS)

fmt: $(READY) ## format, and fix what can be fixed without a decision
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

chaos: $(READY) ## a seeded workload under faults, judged by the auditor: SEED=7 SECONDS=60
	@$(BIN)/python -P -m effect_chaos --seed $(SEED) --seconds $(SECONDS) $(ARGS)

matrix: $(READY) ## the crash matrix, every cell: ARGS="--lanes 4 --json report.json"
	@$(BIN)/effect-broker demo crash-matrix $(ARGS)

bench: $(READY) ## measurements against the limit of the database
	@$(BIN)/python -m bench $(ARGS)

mutate: $(READY) ## planted bugs that the tests must catch
	@$(BIN)/python -P -m effect_chaos.mutants $(ARGS)

audit: $(READY) ## known vulnerabilities of the locked releases, if the service can be asked
	@.ci/audit $(BIN)/pip-audit

# Each lock is resolved for every supported Python and platform at once, and names no host. The
# runtime lock is the part of the other that the image needs.
RESOLVE = $(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
  --no-emit-package effect-broker --no-emit-index-url --no-emit-find-links --no-annotate \
  --custom-compile-command "make lock" --quiet

lock: ## resolve the locks again (UPGRADE=1: to the newest versions)
	@$(RESOLVE) --all-extras $(if $(UPGRADE),--upgrade) --output-file $(LOCK)
	@$(RESOLVE) --constraint $(LOCK) --output-file requirements.runtime.lock

venv: $(READY) ## only the environment

# The stamp is written last: an install that was interrupted is done again.
$(READY): $(LOCK) pyproject.toml
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "effect-broker needs Python 3.11 or newer; '$(PYTHON)' is not on PATH." \
	    "Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "effect-broker needs Python 3.11 or newer; '$(PYTHON)' is" \
	    "$$("$(PYTHON)" --version 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@echo "preparing $(VENV) (once; about a minute)"
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv "$(VENV)" || { \
	  echo "'$(PYTHON) -m venv' failed: on Debian and Ubuntu, install python3-venv." >&2; exit 1; }
	@$(PIP) install --require-hashes -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

clean: ## remove the environment, caches and build results; never the state of a broker
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf "$(VENV)"; fi
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
