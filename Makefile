PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast nightly lint docs bench peers gpu clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "tools/README.md lists the targets that make data and figures, such as make scoreboard."

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ .venv/lib flaxformer_lite || true  # pip would do it on one core; some are templates
	@touch $@

install: $(STAMP)  ## make .venv with everything the other targets use

demo: $(STAMP)  ## pretrain a tiny GPT on real text, in about two minutes on two cores
	@$(BIN)/python train.py --config=configs/demo.py --workdir=runs/demo

# A file's tests share a worker and what it has compiled; long files come first, as tests/conftest.py orders them.
WORKERS := --numprocesses=2 --dist=loadfile --no-loadscope-reorder
test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest $(WORKERS)

# What a change breaks first: pure functions, modules, the config, the command line's words. No training, no published files.
FAST := tests/nn/functions tests/nn/positions tests/nn/modules tests/config tests/cli/test_command_line.py \
	tests/cli/test_main.py tests/cli/test_list_fields.py tests/test_layers.py tests/test_registry.py tests/test_init.py
test-fast: $(STAMP)  ## run the tests of the functions, modules, config and command line, in under two minutes
	$(BIN)/python -m pytest $(WORKERS) $(FAST)

nightly: $(STAMP)  ## run all tests, with those too slow for every change, in the programs that a user runs
	FLAXFORMER_LITE_DEFAULT_XLA=1 $(BIN)/python -m pytest $(WORKERS) -m ''

lint: $(STAMP)  ## check style, imports, format, types and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.lint
	$(BIN)/mypy
	$(BIN)/zizmor --offline --quiet .github
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

DOCS := .venv/.docs
$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(DOCS)  ## build the documentation into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

TORCH ?= python3
FLAX ?=
CASE ?=
bench: $(STAMP)  ## measure beside torch and Flax, and how it starts; TORCH=a python that has it, FLAX=another, CASE=gpt_small
	$(BIN)/python -m benchmarks.run --torch=$(TORCH) $(if $(FLAX),--flax=$(FLAX)) $(if $(CASE),--case=$(CASE))
	$(if $(CASE),,$(BIN)/python -m benchmarks.start)

# An environment of each peer; one that cannot be installed is named on the page.
PEERS := .venv-peers
TORCH_OF_PEERS := torch==2.13.0
$(PEERS)/torch: PACKAGES = $(TORCH_OF_PEERS) transformers sentence-transformers peft accelerate datasets
$(PEERS)/onnx: PACKAGES = $(TORCH_OF_PEERS) sentence-transformers[onnx]
$(PEERS)/ctranslate2: PACKAGES = $(TORCH_OF_PEERS) ctranslate2 transformers
$(PEERS)/llama: PACKAGES = xllamacpp gguf safetensors
PEER_ENVIRONMENTS := $(addprefix $(PEERS)/,torch onnx ctranslate2 llama)
$(PEER_ENVIRONMENTS):
	$(PYTHON) -m venv $@
	-$@/bin/python -m pip install --quiet numpy $(PACKAGES)

WRITER ?=
EMBEDDER ?=
peers: $(STAMP) $(PEER_ENVIRONMENTS)  ## do what users do beside transformers, sentence-transformers, peft, CTranslate2 and llama.cpp; WRITER=folder of SmolLM2, EMBEDDER=of MiniLM
	$(BIN)/python -m benchmarks.peers --writer=$(WRITER) --embedder=$(EMBEDDER) --environments=$(PEERS)

# As peers of one GPU; vLLM brings the torch that it was built with.
GPU := .venv-gpu
$(GPU)/ours: PACKAGES = -e .[cuda]
$(GPU)/torch: PACKAGES = torch transformers sentence-transformers
$(GPU)/vllm: PACKAGES = vllm
GPU_ENVIRONMENTS := $(addprefix $(GPU)/,ours torch vllm)
$(GPU_ENVIRONMENTS):
	$(PYTHON) -m venv $@
	-$@/bin/python -m pip install --quiet numpy $(PACKAGES)

gpu: $(GPU_ENVIRONMENTS)  ## prove attention on an NVIDIA GPU, and measure beside torch and vLLM; EMBEDDER=folder of MiniLM
	$(GPU)/ours/bin/python -m benchmarks.gpu --environments=$(GPU) --embedder=$(EMBEDDER)

clean:  ## remove the environment and what tests and runs left
	rm -rf .venv .venv-canary .venv-exports .venv-gpu .venv-matrix .venv-peers .venv-wheel runs build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache

include tools/tools.mk
