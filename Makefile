# One way to do each thing. `make` lists the targets; each installs what it needs first.
#
# PYTHON chooses the interpreter: `make test-fast PYTHON=python3.12` works in .venv-3.12, with what the fast tests need only: there
# torch and ray are left out, since a wheel of torch for another Python may be a CUDA build of gigabytes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV := .venv
EXTRAS := test,lint
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
EXTRAS := unit,lint
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Without a proxy for loopback; Ray's own default for authentication hangs on a file in the home.
export NO_PROXY := 127.0.0.1,localhost
export RAY_AUTH_MODE := token
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# More pytest options, such as ARGS='-k fencing -x'.
ARGS ?=
SEED ?= 0
# Older releases of Ray that `make rays` puts on the cluster.
RAYS ?= 2.51.0 2.54.0
# Another Python for Airflow in `make pythons`; its environment needs neither ray nor torch.
OTHER ?= python3.12
export CHROMIUM ?= /usr/bin/chromium

.PHONY: help setup lint format test-fast test test-slow scenarios model chaos stops rays pythons browser demo stack docs bench build clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Create the virtual environment with all that development needs

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 14) or sys.exit("Python 3.10 to 3.13 is needed, %s is %d.%d; give another one: make PYTHON=python3.12 (for what needs Ray: PYTHON=python3.11 EXTRAS=test,lint)" % (sys.executable, *v))'
	@echo "Installing into $(VENV) ($(EXTRAS)); the first time takes some minutes ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

lint: setup  ## Style, format, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## Repair style and format where that is safe
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-fast: lint  ## Lint and unit tests: about a minute
	$(BIN)/python -m pytest tests/unit -n 2 $(ARGS)

# Each step ends its services before the next begins: an Airflow or a Ray that idles costs a tenth of a core.
test: lint  ## Everything but what is slow, on a real Airflow, Ray and S3: about 30 minutes on two cores
	$(BIN)/python -m pytest tests/unit tests/scenarios tests/model -n 2 $(ARGS)
	$(BIN)/python -m pytest tests/contract -m "not slow" $(ARGS)
	$(BIN)/python -m pytest tests/e2e/runtime tests/e2e/test_train_v1_ray.py -m "not slow" $(ARGS)
	$(BIN)/python -m pytest tests/e2e -m "not slow" --ignore tests/e2e/runtime --ignore tests/e2e/test_train_v1_ray.py $(ARGS)

test-slow: lint  ## The tests that `make test` has no time for
	$(BIN)/python -m pytest tests/contract tests/e2e -m slow $(ARGS)

scenarios: setup  ## Failures that people reported: run their tests, write docs/scenarios.md
	$(BIN)/python -m pytest tests -m scenario -p tests.support.scenario_table --scenario-table docs/scenarios.md

model: setup  ## Explore the protocol between tries, drivers and bucket: about two minutes (MISTAKE='no marker' shows one story)
	@$(BIN)/python -m tests.model $(if $(MISTAKE),--seed "$(MISTAKE)")

rays: setup $(RAYS:%=.venv-ray-%/.installed)  ## Older releases of Ray on the cluster, and an upgrade between two tries (RAYS="2.51.0 2.54.0")
	@for ray in $(RAYS); do \
		echo "Ray $$ray"; OLDER_RAY_BIN=$(CURDIR)/.venv-ray-$$ray/bin $(BIN)/python -m pytest tests/rays $(ARGS); \
	done

pythons: setup  ## Airflow on another Python than the cluster's: a function of the DAG file trains there (OTHER=python3.12)
	@$(MAKE) --no-print-directory setup PYTHON=$(OTHER)
	OTHER_PYTHON_BIN=$(CURDIR)/.venv-$$($(OTHER) -c 'import sys; print("%d.%d" % sys.version_info[:2])')/bin $(BIN)/python -m pytest tests/pythons $(ARGS)

.venv-ray-%/.installed: constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet 'ray[default,train]==$*' "$$(grep '^torch==' constraints.txt)"
	@touch $@

browser: setup $(VENV)/.browser  ## The lineage page in headless Chromium, screenshots in .make/screenshots (CHROMIUM=/path)
	$(BIN)/python -m pytest tests/browser $(ARGS)

# Playwright's own browser isn't downloaded: the machine's Chromium is used.
$(VENV)/.browser: pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $$(sed -n 's/^browser = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',"')
	@touch $@

demo: setup  ## Train, kill a worker and the driver, restore, compare (KEEP=1 leaves the UI up)
	@$(BIN)/python -m tests.demo $(if $(KEEP),--keep)

chaos: setup  ## Faults at every point of a training, on real services (CHAOS_RUNS=n, SEED=n, ONLY="kill driver", RESULTS=file to go on with)
	$(BIN)/python -m tests.chaos --seed $(SEED) $(if $(CHAOS_RUNS),--runs $(CHAOS_RUNS)) $(if $(ONLY),--only "$(ONLY)") $(if $(RESULTS),--results "$(RESULTS)")

stops: setup  ## Kill, clear, time-out and eviction, every row, on the real stack
	$(BIN)/python -m pytest tests/e2e/test_stops.py tests/e2e/test_lost_processes.py tests/e2e/test_clears.py $(ARGS)

stack: setup  ## Keep Airflow, Ray and S3 up to try a DAG of your own (DAGS=folder)
	@$(BIN)/python -m tests.stack $(if $(DAGS),--dags $(DAGS))

# The reference is written from the code before; the pages' code and names are checked by the same tests as in `make test`.
docs: setup .venv-docs/.installed  ## The documentation site, into .make/site: strict build, code blocks executed
	@$(BIN)/python -m tests.site
	$(BIN)/python -m pytest tests/unit/test_docs.py tests/unit/test_docs_code.py tests/unit/test_docs_reference.py tests/unit/test_docs_messages.py tests/unit/test_docs_site.py tests/unit/sensors/test_sensor_page.py -q
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict
	@echo "open .make/site/index.html"

# mkdocs and its theme by the ranges of the `docs` extra, without the provider and Airflow.
.venv-docs/.installed: pyproject.toml constraints.txt
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt $$(sed -n 's/^docs = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ',"')
	@touch $@

# One after the other, alone on the machine: ARGS=--quick shows that they work, in minutes and on a busy machine.
bench: setup  ## Measure all: what is in docs/benchmarks.md; one alone: make bench-import (ARGS=--quick)
	$(BIN)/python -m benchmarks $(ARGS)

bench-%: setup
	$(BIN)/python -m benchmarks $* $(ARGS)

build: setup  ## Build the distribution into dist/
	$(BIN)/python -m build --outdir dist

clean:  ## Remove virtual environments, caches and builds
	rm -rf .venv .venv-* dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .make .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
