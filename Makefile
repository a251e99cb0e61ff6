# sparklog: `make` lists what there is.
# Everything runs in .venv, made on first use with uv when it is installed, else with pip.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
# the first of these that is Python 3.11 or newer
PYTHONS := python3.13 python3.12 python3.11 python3 python
TESTS  ?= tests
TORTURE ?=
FUZZ_ARGS ?= run all --count 50
PYTEST  = $(PY) -m pytest $(TESTS) $(PYTEST_ARGS)
# All tests together have five workers, which wait half of the time (PYTEST_ARGS=-n0: one test after the other).
# A worker gets whole modules, the long ones first.
WORKERS = $(if $(filter tests,$(TESTS)),-n 5 --dist loadscope --no-loadscope-reorder)
CAMPAIGNERS = $(if $(filter tests,$(TESTS)),-n 4 --dist loadscope --no-loadscope-reorder)
FAST    = $(if $(filter tests,$(TESTS)),tests/unit tests/golden tests/property,$(TESTS))

# Spark runs Python in processes of its own: they must be this Python
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
# The tests start hundreds of Python processes: without bytecode on disk each would compile what it imports
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@echo "sparklog: a Spark-native streaming log"
	@echo
	@sed -nE 's/^([a-z][a-z-]*):[^#]*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done
	@echo
	@echo "First time here? make demo"

.PHONY: demo
demo: java $(VENV)/.installed-demo ## real flights through the broker into Spark and out again, every row counted
	@$(PY) notebooks/flights_demo $(DEMO_ARGS)

.PHONY: demo-cluster
demo-cluster: java $(VENV)/.installed-demo ## the same with three brokers: leaders, the controller and ZooKeeper die meanwhile, every row counted
	@$(PY) notebooks/flights_demo --brokers 3 $(DEMO_ARGS)

.PHONY: test
test: java $(VENV)/.installed-dev ## the gate: each behaviour once (TESTS=path and PYTEST_ARGS=… narrow it down)
	$(PY) -m pytest $(TESTS) $(WORKERS) $(PYTEST_ARGS)

.PHONY: test-all
test-all: java $(VENV)/.installed-dev ## all tests, with simulated lives from a window of seeds that moves with the date
	HYPOTHESIS_PROFILE=ci $(PY) -m pytest $(TESTS) $(WORKERS) --all $(PYTEST_ARGS)

.PHONY: test-matrix
test-matrix: java ## a share of the Spark tests with Spark 4.0 to 4.2 and Python 3.11 to 3.13 (MATRIX_ARGS="--spark 4.1" for some)
	@for candidate in $(PYTHONS); do if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		exec $$candidate -m tests.campaigns.matrix $(MATRIX_ARGS); fi; done; echo "no Python 3.11 or newer on the PATH" >&2; exit 1

.PHONY: parity
parity: java $(VENV)/.installed-dev ## sparklog beside Kafka and Spark's connector, case by case; the differences go into the guide (minutes)
	@$(PY) -m tests.spark.kafka_parity $(PARITY_ARGS)

.PHONY: test-fast
test-fast: $(VENV)/.installed-dev ## unit and property tests and golden files, without Spark (3 minutes at most)
	$(PY) -m pytest $(FAST) -n 2 --dist loadscope -m "not spark and not crash" $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## ruff, mypy, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: size
size: $(VENV)/.installed-dev ## count lines by folder, long files, functions and classes, and names that need decoding
	@$(PY) -m tests.support.proportions

.PHONY: coverage
coverage: $(VENV)/.installed-dev ## what the tests without Spark reach, with a floor (html in build/coverage)
	$(PYTEST) -m "not spark and not crash and not torture" --cov --cov-report=term:skip-covered --cov-report=html

.PHONY: dist
dist: $(VENV)/.installed-dev ## build wheel and sdist into dist/, and try them in an environment of their own
	$(PY) -m build --no-isolation --outdir dist .
	$(PY) -m pytest tests/system/test_distribution.py

.PHONY: docs
docs: $(VENV)/.installed-dev ## the site with guide, internals and API reference, in build/site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict  # --quiet would hide the warnings from --strict
	@echo "built: build/site/index.html"

.PHONY: console-pictures
console-pictures: $(VENV)/.installed-dev ## take the pictures of the console anew (docs/console, needs chromium)
	@$(PY) -m tests.system.console_screenshots

.PHONY: notebooks
notebooks: java $(VENV)/.installed-dev ## run the notebooks and write their pages in docs/notebooks anew (NOTEBOOKS=quickstart for some)
	@$(PY) docs/generate_notebooks.py $(NOTEBOOKS)

.PHONY: torture
torture: java $(VENV)/.installed-dev ## long campaigns: kills, damage, lives, many examples (hours); TORTURE="--seconds 600", "--count 10000" or forever: only simulated clusters, so many
	@if [ -n "$(TORTURE)" ]; then exec $(PY) -m tests.simulation.torture $(TORTURE); \
	else HYPOTHESIS_PROFILE=torture $(PYTEST) $(CAMPAIGNERS) -m "torture or (hypothesis and not spark)" --timeout=7200 -o faulthandler_timeout=0; fi

.PHONY: mutations
mutations: $(VENV)/.installed-dev ## break listed rules of the product one by one in a copy, and see the tests notice it (MUTATIONS="--sample 25", "--random 25 --seed 1")
	@$(PY) -m tests.campaigns.mutations $(MUTATIONS)

.PHONY: fuzz
fuzz: $(VENV)/.installed-dev ## hostile batches, requests, files and servers by hand (FUZZ_ARGS="run decode --seconds 60", "probe")
	@$(PY) -m tests.campaigns.fuzz $(FUZZ_ARGS)

.PHONY: gateway-suites
gateway-suites: java $(VENV)/.installed-dev ## tests of Kafka's clients by their authors, and clients with schemas, against the Kafka gateway (needs Go, npm, g++, libzstd-dev, Maven, GitHub; SUITES_ARGS="franz-go --run TestTxn")
	@$(PY) -m tests.campaigns.gateway_suites $(SUITES_ARGS)

.PHONY: gateway-campaign
gateway-campaign: java $(VENV)/.installed-dev ## kill -9 of gateways, brokers and leaders beneath librdkafka's clients (CAMPAIGN_ARGS="--seed 2 --kills 100")
	@$(PY) -m tests.campaigns.torture.kafka_campaign $(CAMPAIGN_ARGS)

.PHONY: bench
bench: java $(VENV)/.installed-dev ## measure sparklog beside Kafka, which it installs itself (ROWS=produce-100b,spark-scan for some)
	@$(PY) -m tests.campaigns.benchmarks run --rows "$(ROWS)" $(BENCH_ARGS)

.PHONY: bench-report
bench-report: $(VENV)/.installed-dev ## put the measured rows into the table and picture of docs/benchmarks.md
	@$(PY) -m tests.campaigns.benchmarks report

.PHONY: bench-quick
bench-quick: $(VENV)/.installed-dev ## a few figures without peers, compared with the committed ones (3 minutes at most)
	@$(PY) -m tests.campaigns.benchmarks quick $(BENCH_ARGS)

.PHONY: conf
conf: $(VENV)/.installed-dev ## write conf/broker.toml, the guide's tables and the types of Kafka's messages anew
	@$(BIN)/sparklog config broker --output conf/broker.toml
	@$(PY) docs/generate_tables.py
	@$(PY) -m tests.support.kafka_types

.PHONY: venv
venv: $(VENV)/.installed-dev ## make .venv with everything for development
	@echo "ready: source $(BIN)/activate"

.PHONY: clean
clean: ## remove .venv, caches and the demo's output
	rm -rf $(VENV) .matrix demo-output spark-warehouse metastore_db derby.log build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: java
java:
	@java -version >/dev/null 2>&1 || { echo "Spark needs Java 17 or newer and there is no working 'java' on the PATH: install one (for example the package openjdk-17-jre-headless), or try what needs no Spark: make test-fast" >&2; exit 1; }
	@version=$$(java -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p' | head -1); \
	if [ "$${version:-17}" -lt 17 ]; then echo "Spark needs Java 17 or newer, 'java' is version $$version: put a newer one on the PATH" >&2; exit 1; fi

# The stamps say "installed as pyproject.toml asks". `.installing` exists while an installation runs: one that was
# interrupted is thrown away. The development extra contains the demo's, so it makes both stamps.
$(VENV)/.installed-demo: pyproject.toml
	@$(call install,demo)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@$(call install,dev)
	@# compiles the tests once; else each worker of the first run would do it
	@for part in tests/unit "tests --ignore=tests/unit"; do $(PY) -m pytest --collect-only -q $$part > /dev/null & done; wait
	@touch $@ $(VENV)/.installed-demo

define install
set -euo pipefail; \
if [ -e $(VENV)/.installing ] || { [ -e $(VENV) ] && ! $(PY) -c '' 2>/dev/null; }; then \
	echo "$(VENV) is half-made: making it anew"; rm -rf $(VENV); fi; \
uv=$$(command -v uv || true); \
if [ ! -e $(VENV) ]; then \
	python=; for candidate in $(PYTHONS); do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ] && [ -z "$$uv" ]; then \
		echo "sparklog needs Python 3.11 or newer; none of $(PYTHONS) is. Install one, or install uv, which brings its own." >&2; exit 1; fi; \
	echo "making $(VENV) with $${uv:+uv and }$${python:-the Python that uv brings}"; \
	mkdir -p $(VENV) && touch $(VENV)/.installing; \
	if [ -n "$$uv" ]; then uv venv --quiet --allow-existing --python "$${python:-3.12}" $(VENV); \
	else $$python -m venv $(VENV) || { echo "the venv could not be made: is the package python3-venv installed?" >&2; exit 1; }; fi; fi; \
touch $(VENV)/.installing; \
echo "installing sparklog[$(1)] into $(VENV) (the first time this downloads Spark and its company, some 600 MB)"; \
if [ -n "$$uv" ]; then uv pip install --quiet --python $(PY) -c .ci/constraints.txt -e '.[$(1)]'; \
else $(PY) -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[$(1)]'; fi; \
env -u SPARK_HOME $(PY) -m pyspark_sparklog.precompile >/dev/null; \
rm -f $(VENV)/.installing
endef
