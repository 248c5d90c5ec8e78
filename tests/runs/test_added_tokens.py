"""Tokens that a run adds to its tokenizer, and their rows."""

import json
import shutil

import jax
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer, run, save_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig, TokenizerConfig
from flaxformer_lite.pages import get_config
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.runs.start.setup import prepare_experiment
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.text import tokenizer, tokenizer_training
from tests.runs import launched

ADDED = ("<tool>", "</tool>", "слово")
ROWS = [f"call <tool>sum {i} and {i + 1}</tool> for слово" for i in range(200)]


def settings(folder, steps=2):
    """A GPT of one layer with a trained tokenizer, on rows that spell the added tokens."""
    path = folder / "rows.txt"
    path.write_text("\n\n".join(ROWS))
    config = get_config("gpt2_tiny")
    own = {"train.steps": steps, "train.batch_size": 4, "train.eval_every": 2, "mesh.data": 1}
    own |= {
        "train.checkpoint_every": 2,
        "data.path": str(path),
        "data.cache": str(folder / "cache"),
    }
    own |= {"data.tokenizer.name": "byte_bpe", "data.tokenizer.vocab_size": 400}
    config.update_from_flattened_dict(launched.SETTINGS | own)
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
    experiment = prepare_experiment(read_experiment(config))
    known = experiment.train_data.tokenizer
    assert [known.encode(name) for name in ADDED] == [[400], [401], [402]]
    assert experiment.cfg.model.vocab_size == 448
    read = known.encode(ROWS[0])
    assert read.count(400) == read.count(401) == read.count(402) == 1
    assert known.decode(read) == ROWS[0]


def table_of(config, published):
    experiment = prepare_experiment(read_experiment(config))
    params = jax.device_get(initial_state(experiment.program, str(published)).params)
    return params["token_embed"]["embedding"]


def test_a_table_grows_by_the_mean_of_its_rows_where_it_has_no_spare_ones(tmp_path, published):
    old = np.asarray(load_pretrained(published)[1]["token_embed"]["embedding"])
    config = started_from(tmp_path, published)
    np.testing.assert_array_equal(table_of(config, published), old)  # as many tables have some
    config.data.tokenizer.add = (*(f"<{i}>" for i in range(48)), *ADDED)
    table = table_of(config, published)
    assert (len(old), len(table)) == (448, 451)
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
        files = folder / "tokenizer" if folder == workdir else folder
        assert tokenizer.load(files).encode("a<tool>")[-1:] == [448]


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
    mesh = build_mesh(MeshConfig(data=2))
    model, params = load_pretrained(published, vocab_size=460, mesh=mesh)
    assert params["token_embed"]["embedding"].shape == (460, model.cfg.d_model)
