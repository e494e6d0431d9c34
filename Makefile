# One command each. `make` alone lists them.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# An active virtual environment is used; otherwise .venv is made.
VENV := $(or $(VIRTUAL_ENV),.venv)
BIN := $(abspath $(VENV))/bin
PY := $(BIN)/python
LOCK := requirements/lock.txt
SERVER_LOCK := requirements/server.txt
BENCH_LOCK := requirements/bench.txt
AUDIT_LOCK := requirements/audit.txt
MUTATION_LOCK := requirements/mutation.txt
READER_LOCK := requirements/reader.txt
# Names this checkout, so that two checkouts can share an environment.
STAMP := $(VENV)/.neve-installed-$(shell pwd | cksum | cut -d ' ' -f 1)
# An independent reader of lake tables, with versions of its own.
READER := $(VENV)/reader
READER_STAMP := $(READER)/.installed
QUIET := $(if $(MAKE_TERMOUT),,--quiet)
PIP := $(PY) -m pip install --disable-pip-version-check --no-compile $(QUIET)
# A stuck run ends here; a healthy one takes some 22 minutes on two cores, twice as long on slow ones.
TEST_BUDGET_S := 4800
# Concurrent test files; each starts its own Redis, Ray or Spark if it needs one: three such take 12 GB.
# More workers than three begin with the fast tests (tests/conftest.py).
TEST_WORKERS := $(or $(shell awk '/^MemTotal/ && $$2 > 16000000 {print 4}' /proc/meminfo 2> /dev/null),3)
# Fast tests wait for sockets and child processes: a third worker uses the cores meanwhile.
FAST_WORKERS := 3
FAST := not (integration or e2e or slow or tls)
# Each of their branches has a test.
DECISIONS := coordinator.core coordinator.plugins common.model common.metadata.changes
# Whole files to each worker, in the order of tests/conftest.py: long ones first, but for one worker.
PARALLEL := --dist loadfile --no-loadscope-reorder

export PATH := $(BIN):$(PATH)
export PYTHON
# Modules are compiled on first use, and most never are. Compiled modules are kept: otherwise
# each of a few hundred processes compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help:  ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/:/' | column -t -s ':'

.PHONY: install
install: $(STAMP) $(READER_STAMP)  ## Install the pinned requirements and Névé itself into .venv

$(PY):
	@python=$$(scripts/find-python) && \
	echo "Making $(VENV) with $$python" && \
	"$$python" -m venv $(VENV)

# The lists are complete, so pip resolves nothing: for a package requested with an extra, older versions of pip would
# take a newer release than the list has, and refuse it.
$(STAMP): $(LOCK) pyproject.toml | $(PY)
	@echo "Installing the pinned requirements into $(VENV); the first time takes some minutes"
	@$(PIP) --require-hashes --no-deps -r $(LOCK) || { \
	echo "Installing failed; the lines above say at which package. Wanted are a package index within reach" \
	"and Linux (x86-64 or arm64) or a Mac with Apple silicon; the same command goes on from here." >&2; \
	exit 1; }
	@PYTHONWARNINGS=ignore $(PIP) --no-build-isolation --no-deps -e .
	@touch $@
	@echo "Installed. Next: make demo"

# Tests read lake tables with it; see tests/support/independent_reader.py.
$(READER_STAMP): $(READER_LOCK) | $(STAMP)
	@rm -rf $(READER)
	@$(PIP) --require-hashes --no-deps --target $(READER) -r $(READER_LOCK)
	@touch $@

AUDIT_TOOLS := $(VENV)/.audit-tools
$(AUDIT_TOOLS): $(AUDIT_LOCK) $(STAMP)
	@$(PIP) --require-hashes --no-deps -r $(AUDIT_LOCK)
	@touch $@

MUTATION_TOOLS := $(VENV)/.mutation-tools
$(MUTATION_TOOLS): $(MUTATION_LOCK) $(STAMP)
	@$(PIP) --require-hashes --no-deps -r $(MUTATION_LOCK)
	@touch $@

.PHONY: demo
demo: $(STAMP)  ## See a table being compacted, on this machine
	@$(BIN)/neve demo

.PHONY: test
test: install  ## Run the tests; needs neither Java nor Redis on the machine
	@$(PY) -m pytest tests -m "not (long or tls)" -n $(TEST_WORKERS) $(PARALLEL) --session-timeout=$(TEST_BUDGET_S)

.PHONY: long
long: install  ## Run the tests that are too long for `make test`; more than an hour
	@$(PY) -m pytest tests -m long -n $(TEST_WORKERS) $(PARALLEL)

.PHONY: test-image-root
test-image-root: install  ## Run the image's Dockerfile on a bare Debian, and the service in it; needs root and debootstrap
	@$(PY) -m tests.support.image_root

.PHONY: tls
tls: install  ## Test Sentinels over TLS; needs a redis-server with TLS, in PATH or REDIS_TLS_SERVER
	@$(PY) -m pytest tests -m tls

.PHONY: lint
lint: install  ## Format, lint, types, layers and spelling; no tests
	@$(MAKE) --no-print-directory --jobs=2 --keep-going $(APART) $(LINTS)

# Types take longest and run first. Each prints its output when it has finished, if make supports
# output synchronisation; make of macOS is too old.
APART := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
LINTS := lint-types lint-layers lint-format lint-rules lint-spelling
.PHONY: $(LINTS)
lint-types:
	@echo "mypy" && mypy
lint-layers:
	@echo "import contracts" && lint-imports
lint-format:
	@echo "ruff format" && ruff format --check .
lint-rules:
	@echo "ruff check" && ruff check .
lint-spelling:
	@echo "codespell" && codespell

.PHONY: check
check: lint  ## What `make lint` does, and the fast tests
	@echo "fast tests" && $(PY) -m pytest tests -m "$(FAST)" -n $(FAST_WORKERS) $(PARALLEL)

.PHONY: quick
quick: install  ## Lint by ruff, and the tests of core and protocol: under a minute, for use after each edit
	@ruff format --check . && ruff check .
	@$(PY) -m pytest tests/unit/coordinator_core tests/unit/metadata tests/contract -m "$(FAST)" \
	-k "cluster_state or (not redis and not cluster and not sentinel)" -q

.PHONY: coverage
coverage: install  ## List the branches of the decisions that no test without a stack reaches; fails if there is one
	@$(PY) -m pytest tests/unit tests/property tests/contract tests/sim -m "not (long or tls)" -n $(FAST_WORKERS) $(PARALLEL) -q \
	$(DECISIONS:%=--cov=%) --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

.PHONY: sim
sim: install  ## Simulate clusters with faults; SIM_SEEDS=17 replays one seed
	@$(PY) -m pytest tests/sim

.PHONY: sim-long
sim-long: install  ## The same with more than twice as many seeds
	@SIM_LONG=1 $(PY) -m pytest tests/sim

.PHONY: e2e
e2e: install  ## Run the tests on real Ray, Spark and Redis
	@$(PY) -m pytest tests -m "(integration or e2e) and not tls"

.PHONY: chaos
chaos: install  ## Inject faults into a loaded stack for CHAOS_MINUTES=20, by CHAOS_SEED; docs/reliability.md
	@$(PY) -m tests.chaos

.PHONY: fuzz
fuzz: install  ## Send the service 50,000 damaged inputs through every interface; FUZZ_TARGET=http FUZZ_SEED=17 replays one
	@$(PY) -m tests.fuzz

.PHONY: soak
soak: install  ## Write and compact for SOAK_MINUTES=60; fails if a process grows without a bound
	@$(PY) -m benchmarks.soak

.PHONY: sbom
sbom: $(AUDIT_TOOLS)  ## Write build/sbom.json: every locked package with version and hashes, as CycloneDX
	@$(PY) -m scripts.release_audit sbom $(LOCK) build/sbom.json

.PHONY: audit
audit: $(AUDIT_TOOLS)  ## Look for known vulnerabilities of the locked packages; needs the network
	@$(PY) -m scripts.release_audit audit $(LOCK)

.PHONY: deaths
deaths: install  ## Kill and freeze each process below a compactor, in each phase of a job; an hour
	@NEVE_DEATHS=all $(PY) -m pytest tests/e2e/test_supervisor.py -k outlives_its_processes -v

.PHONY: bench
bench: install  ## Measure queue, planning, store, memory, latency, autoscaling and simulator; figures: docs/benchmarks.md
	@for name in queue planning scan store memory latency autoscaling simulate; do $(PY) -m benchmarks.bench_$$name || exit 1; done

.PHONY: bench-control
bench-control: install  ## Measure the control loop, real and simulated; 20 minutes
	@$(PY) -m benchmarks.closed_loop $(BENCH)

.PHONY: bench-rewrite
bench-rewrite: install  ## Measure the rewrite against other engines; BENCH="--scale 0.25" for less
	@$(PIP) --require-hashes --no-deps -r $(BENCH_LOCK)
	@$(PY) -m benchmarks.rewrite $(BENCH)

.PHONY: bench-console
bench-console: install  ## Measure first paint and viewers of the console; needs Chromium
	@$(PY) -m benchmarks.bench_console $(BENCH)

.PHONY: bench-start
bench-start: install  ## Measure what `neve up` and a stack at rest cost, by process
	@$(PY) -m benchmarks.bench_start $(BENCH)

.PHONY: bench-lake-scale
bench-lake-scale: install  ## Measure lake tables of 100,000 files; BENCH="--files 10000" for less
	@$(PY) -m benchmarks.bench_lake_scale $(BENCH)

.PHONY: bench-transforms
bench-transforms: install  ## Measure what transforms cost; BENCH="--sets bag" for less
	@$(PY) -m benchmarks.bench_transforms $(BENCH)

.PHONY: bench-memory-rewrite
bench-memory-rewrite: install  ## Measure the memory of rewrite tasks; BENCH="--gb 1" for less than 10 GB
	@$(PY) -m benchmarks.rewrite_memory $(BENCH)

.PHONY: mutants
mutants: install  ## Plant every fault of tests/mutants.toml; each must fail its suite
	@$(PY) -m tests.support.mutants

.PHONY: mutation
mutation: $(MUTATION_TOOLS)  ## Change a dozen modules in every way, and count what the tests notice; MUTATION="queue" for some
	@$(PY) -m tests.support.mutation $(MUTATION)

.PHONY: lock
lock: install  ## Pin all requirements again, with hashes
	@scripts/lock $(PY) $(LOCK) "What runs, builds and tests Névé" "server embedded trace lake demo dev"
	@scripts/lock $(PY) $(SERVER_LOCK) "What the image installs" "server trace lake" --constraint $(LOCK)
	@scripts/lock $(PY) $(BENCH_LOCK) "Other engines that \`make bench-rewrite\` measures" "bench" \
	--constraint $(LOCK)
	@scripts/lock $(PY) $(AUDIT_LOCK) "What \`make sbom\` and \`make audit\` run" "audit" \
	--constraint $(LOCK)
	@scripts/lock $(PY) $(MUTATION_LOCK) "What \`make mutation\` runs" "mutation" --constraint $(LOCK)
	@scripts/lock $(PY) $(READER_LOCK) "An independent reader of lake tables, for tests" "reader"

.PHONY: console-scripts
console-scripts: install  ## Copy the console's scripts, and axe for its tests, from the lock in requirements/npm; needs npm
	@rm -rf build/npm && mkdir -p build/npm && cp requirements/npm/package*.json build/npm
	@npm ci --prefix build/npm --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved
	@$(PY) -m scripts.vendor_scripts build/npm/node_modules

.PHONY: clean
clean:  ## Remove files of builds and tools; .venv stays
	@rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	.import_linter_cache .coverage htmlcov spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
