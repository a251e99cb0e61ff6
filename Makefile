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
PYTEST  = $(PY) -m pytest $(TESTS) $(PYTEST_ARGS)

# Spark runs Python in processes of its own: they must be this Python
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)

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

.PHONY: test
test: java $(VENV)/.installed-dev ## all tests (TESTS=path and PYTEST_ARGS=… narrow it down)
	$(PYTEST)

.PHONY: test-fast
test-fast: $(VENV)/.installed-dev ## tests that need neither Spark nor killed processes
	$(PYTEST) -m "not spark and not crash and not torture"

.PHONY: lint
lint: $(VENV)/.installed-dev ## ruff, mypy, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: torture
torture: java $(VENV)/.installed-dev ## long campaigns: many examples, crashes, damage (minutes to hours)
	HYPOTHESIS_PROFILE=torture $(PYTEST) -m "torture or not spark" --timeout=7200

.PHONY: bench
bench: java $(VENV)/.installed-dev ## measure sparklog beside Kafka, which it installs itself (ROWS=produce-100b,spark-scan for some)
	@$(PY) -m tests.benchmarks run --rows "$(ROWS)" $(BENCH_ARGS)

.PHONY: bench-report
bench-report: $(VENV)/.installed-dev ## render what was measured into docs/benchmarks.md
	@$(PY) -m tests.benchmarks report

.PHONY: bench-quick
bench-quick: $(VENV)/.installed-dev ## a few figures without peers, compared with the committed ones (3 minutes at most)
	@$(PY) -m tests.benchmarks quick $(BENCH_ARGS)

.PHONY: conf
conf: $(VENV)/.installed-dev ## write conf/broker.toml and the guide's tables anew from the settings
	@$(BIN)/sparklog config broker --output conf/broker.toml
	@$(PY) docs/generate_tables.py

.PHONY: venv
venv: $(VENV)/.installed-dev ## make .venv with everything for development
	@echo "ready: source $(BIN)/activate"

.PHONY: clean
clean: ## remove .venv, caches and the demo's output
	rm -rf $(VENV) demo-output spark-warehouse metastore_db derby.log build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
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
if [ -n "$$uv" ]; then uv pip install --quiet --python $(PY) -e '.[$(1)]'; \
else $(PY) -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'; fi; \
env -u SPARK_HOME $(PY) -m pyspark_sparklog.precompile >/dev/null; \
rm -f $(VENV)/.installing
endef
