# Everything a developer does here, one word each. `make help` prints the list.
# A fresh machine needs Python 3.11 or newer, make and a C library; the rest is installed into .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

# `?=` lets the caller choose: make install PYTHON=/opt/python3.12/bin/python3
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; \
    done),python3)
WORKERS ?= 2
# Integration waits for leases and servers half of its time: one worker more than there are cores.
WAITERS ?= 3
SEED ?=
SCHEDULES ?= 1000000
ARGS ?=

# Tests and Spark start a thousand processes; where the caller keeps Python from storing what it
# compiled, each of them compiles pyspark, pyarrow and us again, which takes two seconds of a core.
unexport PYTHONDONTWRITEBYTECODE

# The files of tests are small and live for a moment: in memory they cost half the time of the system.
TESTS_TMP ?= $(shell free=$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}'); \
                     [ "$${free:-0}" -gt 4000000 ] && echo /dev/shm || echo "$${TMPDIR:-/tmp}")

VENV := .venv
PY := $(VENV)/bin/python
# Finds or installs a suitable Java, tells Spark which Python to use, then runs what follows.
RUN := $(PY) tools/with_java.py
PYTEST := $(RUN) $(PY) -m pytest -q
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
FRAMES := $(VENV)-frames

.PHONY: help install requirements check format lint types contracts test integration package \
        interop demo bench bench-frames bench-locks nightly nightly-tests nightly-schedules nightly-mutation \
        sim mutants mutation chaos clean

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## set everything up in .venv (again only when requirements change)

$(STAMP): requirements/uv.txt requirements/test.txt tools/setup_venv.py pyproject.toml
	$(PYTHON) tools/setup_venv.py --venv $(VENV) --project requirements/test.txt
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements/bench.txt
	$(PYTHON) tools/setup_venv.py --venv $(VENV) requirements/bench.txt
	@touch $@

# Dataframe tools with pandas 3, which PySpark does not accept.
$(FRAMES)/.installed: $(STAMP) requirements/frames.txt
	$(PYTHON) tools/setup_venv.py --venv $(FRAMES) requirements/frames.txt
	@touch $@

requirements: $(STAMP) ## pin requirements/*.in anew (needs the network)
	$(PY) tools/pin_requirements.py

check: format lint types contracts test ## everything that a change must pass before review

format: $(STAMP) ## lay the source out
	$(PY) -m ruff format .

lint: $(STAMP) ## rules of style, and the bans that keep the engine replayable
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types: $(STAMP) ## mypy --strict
	$(PY) -m mypy

contracts: $(STAMP) ## who may import whom
	$(VENV)/bin/lint-imports

test: $(STAMP) ## unit, simulation, conformance, acceptance; no network, no services
	TMPDIR=$(TESTS_TMP) $(PYTEST) -n $(WORKERS) --dist loadgroup -m "not integration and not jvm and not slow" $(ARGS)

integration: $(STAMP) $(FRAMES)/.installed ## real Spark processes, and writers killed at random moments
	$(PYTEST) -n $(WAITERS) --dist loadgroup --no-loadscope-reorder -m "integration and not jvm and not slow" $(ARGS)

package: $(STAMP) ## wheel and sdist, each extra alone, three versions of Python (a part of integration)
	$(PYTEST) tests/packaging $(ARGS)

interop: $(STAMP) ## the real Java Hudi reads and writes the same tables (needs maven and a JDK 17)
	$(PYTEST) -m "jvm and not slow" $(ARGS)

demo: $(STAMP) ## two PySpark writers and a cleaning worker on 336,776 real flights
	$(RUN) $(VENV)/bin/hoodoo demo $(ARGS)

bench: $(BENCH_STAMP) ## next to the other engines, with ratios
	$(RUN) $(PY) tools/setup_bench_spark.py || true
	$(RUN) $(PY) benchmarks/bench.py $(ARGS)

bench-frames: $(FRAMES)/.installed ## dataframe tools next to to_arrow(), as ratios
	PYTHONPATH=. $(FRAMES)/bin/python benchmarks/frames.py $(ARGS)

bench-locks: $(BENCH_STAMP) ## lock providers next to the bare clients of their services
	$(RUN) $(PY) benchmarks/locks.py $(ARGS)

nightly: nightly-tests nightly-schedules nightly-mutation ## the long versions, many hours on two cores; its parts follow

nightly-tests: $(STAMP) ## more seeds (200 steps by turns with Java, 50 times), more kills, the whole of interop, chaos under each lock
	$(RUN) $(VENV)/bin/hoodoo demo --quiet # its table is what interop carries on
	HOODOO_NIGHTLY=1 $(PYTEST) --timeout 3600 $(ARGS)

nightly-schedules: $(STAMP) ## a million schedules, the big scopes, mutants from their first schedule on
	$(PY) -m tests.simulation.campaign --nightly --workers $(WORKERS) --schedules $(SCHEDULES) --twice 10000
	$(PY) -m tests.simulation.kill_mutants --search --workers $(WORKERS)

nightly-mutation: $(STAMP) ## a sample of small wrong things in each group
	$(PY) -m tests.mutation.run --processes $(WORKERS) --sample 600 --budget 8

sim: $(STAMP) ## 20,000 simulated schedules; one of them again: make sim SEED=S3:17
	$(PY) -m tests.simulation.campaign --workers $(WORKERS) $(SEED) $(ARGS)

mutants: $(STAMP) ## each guard of the protocol dropped, and the schedule that notices
	$(PY) -m tests.simulation.kill_mutants --workers $(WORKERS) $(ARGS)

mutation: $(STAMP) ## one wrong thing at a time in rules, publishing and slots, and whether a test sees it
	$(PY) -m tests.mutation.run --processes $(WORKERS) $(ARGS)

chaos: $(STAMP) ## real processes killed, stopped, cut off: ARGS='--minutes 20 --lock postgresql'
	$(RUN) $(PY) -m tests.chaos $(ARGS)

clean: ## remove what was built, but not the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo-table
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
