"""Parts of a model written outside the package: each trains by the command line's path, and no file
of the core knows of it."""

import dataclasses
import functools
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import flaxformer_lite
from examples import lora, min_gru, rope_with_decay
from flaxformer_lite import build_model, generate, init_cache
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import gpt2
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.examples import trials

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
ROOT = Path(__file__).parents[2]
SIZES = {"d_model": 16, "num_heads": 2, "mlp_dim": 24, "vocab_size": 37, "dropout": 0.0}
IDS = jnp.asarray(np.random.default_rng(0).integers(1, 37, (2, 8)), jnp.int32)


def built(**options):
    model = build_model(gpt2.config("tiny", **SIZES, decoder_layers=2, **options))
    return model, model.init(jax.random.key(0), IDS)["params"]


@pytest.mark.nightly  # of one hook, tests/test_plugins.py
def test_an_encoding_with_two_hooks(tmp_path):
    fields = {"name": "examples.rope_with_decay:RopeWithDecay", "start": -2.0}
    fields = {f"model.position.{name}": value for name, value in fields.items()}
    _, records = trials.train(tmp_path, **fields)
    assert records[-1]["loss"] < records[0]["loss"]
    run = workdir.read_run(tmp_path / "run", allow_plugins=True)
    slope = run.params["decoder"]["position"]["slope"]
    assert slope.shape == (2,) and slope.any(), "the learned decay was trained"
    plain = dataclasses.replace(run.cfg.model, position=rope_with_decay.Rope())
    ids = IDS % 250

    @jax.jit
    def compute(params):
        fixed = jnp.zeros((1, 8), jnp.int32)
        unturned = run.model.apply({"params": params}, ids, position_ids=fixed).logits
        without = {k: v for k, v in params["decoder"].items() if k != "position"}
        unbiased = build_model(plain).apply({"params": {**params, "decoder": without}}, ids).logits
        return run.model.apply({"params": params}, ids).logits, unbiased, unturned

    two, unbiased, unturned = compute(run.params)
    assert np.abs(two - unbiased).max() > 1e-3, "the bias counts"
    assert np.abs(two - unturned).max() > 1e-5, "and so does the phase"


@pytest.mark.nightly  # of our own recurrent mixers, tests/contrib/recurrent
def test_a_recurrent_language_model_trains_and_writes(tmp_path):
    fields = {"model.mixer.name": "examples.min_gru:MinGruConfig"}
    _, records = trials.train(tmp_path, page="gpt2_tiny:nope", **fields)
    assert records[-1]["loss"] < records[0]["loss"]
    run = workdir.read_run(tmp_path / "run", allow_plugins=True)
    written = generate(run.model, run.params, IDS, max_new_tokens=4)
    whole = jax.jit(run.model.apply)({"params": run.params}, jnp.asarray(written)).logits
    np.testing.assert_array_equal(np.argmax(whole[:, 7:-1], axis=-1), written[:, 8:])


@pytest.mark.nightly
def test_min_gru_documents_do_not_meet_and_padding_is_passed_over():
    """And a text that is read in parts is read as at once."""
    model, params = built(mixer=min_gru.MinGruConfig(), position=gpt2.config("tiny").position)
    apply = lambda ids, **more: model.apply({"params": params}, ids, **more)  # noqa: E731
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 2]] * 2, jnp.int32)
    packed = apply(IDS, segment_ids=segments).logits
    other = apply(IDS.at[:, :3].set(5), segment_ids=segments).logits
    np.testing.assert_array_equal(packed[:, 3:], other[:, 3:])
    close(packed[:, 3:], apply(IDS[:, 3:]).logits)
    keep = jnp.asarray([[0, 0, 1, 1, 1, 1, 1, 1]] * 2, jnp.int32)
    close(apply(IDS, attention_mask=keep).logits[:, 2:], apply(IDS[:, 2:]).logits)
    cache = init_cache(model.cfg, 2, 8)
    parts = []
    for start, stop in ((0, 3), (3, 4), (4, 8)):
        out = apply(IDS[:, start:stop], cache=cache)
        parts.append(out.logits)
        cache = out.cache
    close(jnp.concatenate(parts, axis=1), apply(IDS).logits)


@pytest.mark.nightly  # as the built-in adapter, of which tests/training/test_adapter.py has more
def test_lora_begins_as_its_base_and_leaves_it_alone(tmp_path):
    base, adapted = (tmp_path / name for name in ("base", "adapted"))
    base.mkdir()
    adapted.mkdir()
    trials.train(base)
    changes = {
        "model.mixer.name": "examples.lora:LoraConfig",
        "model.mixer.rank": 4,
        "optimizer.freeze": r"('^(?!.*lora_)',)",
        "train.init_from": base / "run",
    }
    cfg = read_experiment(trials.experiment_dict(adapted, **changes), given=list(changes))
    flaxformer_lite.run(cfg, adapted / "run")
    runs = (workdir.read_run(folder / "run", allow_plugins=True) for folder in (base, adapted))
    old, new = (flatten_dict(run.params, sep="/") for run in runs)
    records, before = (trials.metrics.read(f / "run" / "metrics.jsonl") for f in (adapted, base))
    np.testing.assert_allclose(records[0]["loss"], before[-1]["loss"], rtol=1e-5)
    assert records[-1]["loss"] < records[0]["loss"]
    added = new.keys() - old.keys()
    assert added and all("attention/lora_" in path for path in added)
    for path, value in old.items():
        np.testing.assert_array_equal(new[path], value, err_msg=path)
    assert any(new[path].any() for path in added if path.endswith("_b"))


@pytest.mark.parametrize(
    ("pattern", "said"), [("('nothing',)", "matches no parameter"), ("('.',)", "every parameter")]
)
def test_freezing_what_is_not_there_or_everything(tmp_path, pattern, said):
    with pytest.raises(ConfigError, match=said):
        trials.train(tmp_path, **{"optimizer.freeze": pattern})


def test_lora_of_rank_zero():
    with pytest.raises(ConfigError, match="rank=0: must be at least 1"):
        lora.LoraConfig(rank=0)


@pytest.mark.nightly
def test_a_model_of_ones_own(capsys):
    runpy.run_path(str(ROOT / "examples" / "own_model.py"), run_name="__main__")
    linen, of_nnx = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert 5 < linen < 6 and of_nnx == linen
