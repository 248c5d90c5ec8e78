"""Tokens that a run adds to its tokenizer, and their rows."""

import json
import shutil

import jax
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer, run, save_pretrained
from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.pages import get_config
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.text import tokenizer, tokenizer_training

ADDED = ("<tool>", "</tool>", "слово")
ROWS = [f"call <tool>sum {i} and {i + 1}</tool> for слово" for i in range(200)]


def settings(folder, steps=2):
    """A GPT of one layer with a trained tokenizer, on rows that spell the added tokens."""
    path = folder / "rows.txt"
    path.write_text("\n\n".join(ROWS))
    config = get_config("gpt2_tiny")
    config.model.decoder_layers = 1
    config.model.d_model = 16
    config.model.num_heads = 2
    config.model.mlp_dim = 32
    config.model.max_length = 32
    config.model.vocab_size = 0
    config.data.path = str(path)
    config.data.cache = str(folder / "cache")
    config.data.length = 32
    config.data.eval_fraction = 0.2
    config.data.tokenizer.name = "byte_bpe"
    config.data.tokenizer.vocab_size = 400
    config.train.steps = steps
    config.train.batch_size = 4
    config.mesh.data = 1
    config.train.eval_every = 2
    config.train.eval_batches = 1
    config.train.checkpoint_every = 2
    config.train.sample_tokens = 0
    config.train.loss_chunks = 1
    return config


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published weights of a run, without added tokens."""
    folder = tmp_path_factory.mktemp("published")
    done = run(settings(folder), folder / "run")
    model, params = load_pretrained(done.workdir)
    save_pretrained(folder / "weights", model, params, like=done.workdir)
    return folder / "weights"


def started_from(folder, published, steps=2):
    config = settings(folder, steps)
    config.data.tokenizer = type(config.data.tokenizer)({"add": ADDED})
    config.train.init_from = str(published)
    return config


def test_a_trained_tokenizer_gets_tokens(tmp_path):
    config = settings(tmp_path)
    config.data.tokenizer.add = ADDED
    done = run(config, tmp_path / "run")
    known = load_tokenizer(done.workdir)
    ids = [known.encode(name, special_tokens=False) for name in ADDED]
    assert ids == [[400], [401], [402]]
    assert load_pretrained(done.workdir)[0].cfg.vocab_size == 448
    read = known.encode(ROWS[0], special_tokens=False)
    assert read.count(400) == read.count(401) == read.count(402) == 1
    assert known.decode(read) == ROWS[0]


def test_new_rows_are_the_mean_of_those_of_the_directory(tmp_path, published):
    experiment = prepare_experiment(read_experiment(started_from(tmp_path, published)))
    old = np.asarray(load_pretrained(published)[1]["token_embed"]["embedding"])
    state = initial_state(experiment.program, str(published))
    table = np.asarray(jax.device_get(state.params)["token_embed"]["embedding"])
    size = len(old)
    assert size == 448  # with spare rows for them, as many tables have
    np.testing.assert_array_equal(table, old)


def test_a_table_without_spare_rows_grows(tmp_path, published):
    _, params = load_pretrained(published)
    full = [f"<{i}>" for i in range(48)]
    config = started_from(tmp_path, published, steps=2)
    config.data.tokenizer.add = (*full, *ADDED)
    experiment = prepare_experiment(read_experiment(config))
    assert experiment.program.cfg.model.vocab_size == 451
    state = initial_state(experiment.program, str(published))
    table = np.asarray(jax.device_get(state.params)["token_embed"]["embedding"])
    old = np.asarray(params["token_embed"]["embedding"])
    np.testing.assert_array_equal(table[:448], old)
    np.testing.assert_allclose(table[448:], np.tile(old.mean(axis=0), (3, 1)), atol=1e-6)

    workdir = tmp_path / "run"
    run(config, workdir)
    shutil.move(published, tmp_path / "elsewhere")  # what a run began from may be gone
    config.train.steps = 4
    resumed = run(config, workdir)
    shutil.move(tmp_path / "elsewhere", published)
    assert resumed.steps == 4
    tuned, params = load_pretrained(workdir)
    save_pretrained(tmp_path / "out", tuned, params, like=workdir)
    fields = json.loads((tmp_path / "out/config.json").read_text())
    assert fields["vocab_size"] == 451
    for folder in (workdir, tmp_path / "out"):
        known = load_tokenizer(folder)
        assert len(known) == 451
        assert known.encode("</tool>", special_tokens=False) == [449]
        assert known.decode([448, 449]) == "<tool></tool>"
        assert tokenizer.load(folder / "tokenizer" if folder == workdir else folder).encode(
            "a<tool>"
        )[-1:] == [448]


def test_tokens_that_are_there_change_nothing(tmp_path):
    base = tokenizer_training.train(TokenizerConfig(vocab_size=400), ROWS)
    grown = base.with_tokens(ADDED)
    assert grown.with_tokens(ADDED[:2]) is grown
    assert base.with_tokens(()) is base
    assert grown.vocab_size == base.vocab_size + 3
    assert base.encode("plain words") == grown.encode("plain words")
    # a special token is still no text can spell
    assert grown.encode("[MASK]") == base.encode("[MASK]")
    grown.save(tmp_path)
    assert tokenizer.load(tmp_path).fingerprint == grown.fingerprint
    pieces = grown.pieces()
    assert [pieces[400 + i].decode() for i in range(3)] == list(ADDED)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (lambda: TokenizerConfig(add=("two words",)), "must be a token without spaces"),
        (lambda: TokenizerConfig(add=("",)), "must be a token without spaces"),
        (lambda: tokenizer.Bytes().with_tokens(ADDED), "fixed vocabulary; use a tokenizer.json"),
    ],
)
def test_tokens_that_cannot_be_added_are_refused(chosen, message):
    with pytest.raises(ConfigError, match=message):
        chosen()


def test_a_table_grows_on_a_mesh(published):
    from flaxformer_lite.config import MeshConfig

    mesh = build_mesh(MeshConfig(data=2))
    model, params = load_pretrained(published, vocab_size=460, mesh=mesh)
    assert params["token_embed"]["embedding"].shape == (460, model.cfg.d_model)
