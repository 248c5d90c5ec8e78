"""Every shipped experiment: its config builds, its model traces at full size, and a shrunken copy
lowers its loss."""

import functools
import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite import registry, sharding
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    MeshConfig,
    from_config_dict,
    to_config_dict,
)
from flaxformer_lite.data import dummy
from flaxformer_lite.data.dataset import open_dataset
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.runs.start import initial_state, setup
from flaxformer_lite.training import bound_models, program
from tests.marks import daily
from tests.objectives import learned, tables
from tests.training import tiny_runs

PAGES = sorted(path.stem for path in Path(__file__).parents[1].joinpath("configs").glob("*.py"))
SHRUNK = learned.SIZES | {"num_kv_heads": 0, "head_dim": 16}


def load(name):
    page, _, argument = name.partition(":")
    return importlib.import_module(f"configs.{page}").get_config(*filter(None, [argument]))


shipped = functools.cache(load)  # to be read only


def is_task(name):
    return issubclass(registry.resolve_class("objectives", shipped(name).objective.name), Task)


NAMES = [name for name in PAGES if not is_task(name)]
PAGES_OF_TASKS = [name for name in PAGES if is_task(name)]
RECURRENT = ["tag:recurrent_encoder", "classify:recurrent_encoder", "seq2seq_recurrent_tiny:luong"]
DAILY = ("qa",)  # runs of others are in their objective's own tests
TASKS = daily([*PAGES_OF_TASKS, *RECURRENT], DAILY)


def build(config):
    return from_config_dict(ExperimentConfig, config)


@pytest.mark.parametrize("name", PAGES_OF_TASKS)
def test_a_task_reaches_its_peak_however_short_it_is(name):
    """The peak is reached in the first quarter of 20 steps, and of the page's own."""
    page = load(name)
    for steps in (20, page.train.steps):
        page.train.steps = steps
        cfg = program.with_steps(build(page), 1000)
        assert 0 < cfg.optimizer.warmup_steps <= steps / 4
        assert cfg.optimizer.warmup_share == 0, "the record says the number"


def test_the_record_of_an_older_run_means_what_it_meant():
    """Its config.json has a number of steps, and no share; and a page's run is that of before."""
    values = to_config_dict(build(shipped("classify"))).to_dict()
    values["optimizer"].pop("warmup_share")
    values["optimizer"]["warmup_steps"] = 30
    older = program.with_steps(from_config_dict(ExperimentConfig, values), 1000)
    assert older.optimizer.warmup_steps == 30
    assert older == program.with_steps(build(shipped("classify")), 1000)


@pytest.mark.parametrize("name", [*PAGES, *RECURRENT])
def test_a_page_is_sound(name):
    assert isinstance(build(load(name)).objective, Task) == is_task(name)


# One of each family; the others differ in sizes.
TRACED = ("electra_tiny", "llama_7b", "t5_v1_1", "word2vec")


@pytest.mark.parametrize("name", daily(NAMES, TRACED))
def test_traces_at_full_size(name):
    cfg = build(load(name))
    inputs = jax.tree.map(lambda x: x[None], dummy.example(cfg)["inputs"])
    sized = program.with_vocabulary(cfg, dummy.vocab_size(cfg))
    both = bound_models.build(sized).rebuild(attention="dense")
    params = jax.eval_shape(both.init, jax.random.key(0), inputs)
    outputs, _ = jax.eval_shape(lambda params: both.apply(params, inputs, None), params)
    width = params["token_embed"]["embedding"].shape[1]
    assert outputs.projection.x.shape[0] == 1 and outputs.projection.x.shape[-1] == width


@pytest.fixture
def texts(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(tiny_runs.WORDS, 24)) for _ in range(300)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    pairs = [f'{{"source": "{line}", "target": "{line[::-1]}"}}' for line in lines]
    (tmp_path / "pairs.jsonl").write_text("\n".join(pairs))
    return tmp_path


def look(name):
    """Returns what tells shrunken pages apart: others differ in sizes alone, or in dtype and remat,
    which change no wiring."""
    config = shipped(name)
    return config.model.family, config.objective.name, config.model.mlp, config.model.scan


ALIKE = {look(name): name for name in NAMES}.values()
# Pairs of words; encoders, decoders and both train in tests/runs and tests/cli.
TRAINED = ("word2vec",)


@pytest.mark.parametrize("name", daily(ALIKE, TRAINED))
def test_shrunk_copy_takes_real_steps(name, texts):
    config = shrunk(name)
    if "num_experts" in config.model.feed_forward:
        config.model.feed_forward.update(num_experts=8, mlp_dim=48)
    for source in config.data.mixture.values() if config.data.mixture else [config.data]:
        source.path = str(texts / ("pairs.jsonl" if name == "transformer_base" else "text.txt"))
        source.corpus = "" if config.data.mixture else source.corpus
    config.data.update(length=32, target_length=0, cache=str(texts / "cache"), eval_fraction=0.1)
    config.data.tokenizer.update(name="bytes", min_count=0)
    # two tables start near zero, and their product nearer
    rate = {"word2vec": 3e-2}.get(name, 3e-3)
    config.optimizer.update(name="adamw", learning_rate=rate, warmup_steps=0, schedule="constant")
    config.train.update(steps=12, epochs=0.0, batch_size=8, accumulate=2)
    cfg = build(config)
    data = open_dataset(cfg)
    assert cfg.model.vocab_size == 0
    config.model.vocab_size = -(-data.vocab_size // 64) * 64
    cfg = build(config)
    mesh = sharding.build_mesh(MeshConfig(data=1))
    learns(program.build(cfg, mesh, data.example(0, 0, 0)), next(data.batches(batch_size=8)))


@pytest.mark.nightly  # of each kind of task, tests/objectives
@pytest.mark.parametrize("name", TASKS)
def test_shrunk_task_learns_its_sample(name, tmp_path):
    config = shrunk(name)
    sample = registry.resolve_class("objectives", config.objective.name).sample
    path = tables.write_rows(tmp_path / "rows.jsonl", sample * 8)
    config.data.update(path=path, eval_path=path, length=48, target_length=0, cache=str(tmp_path))
    config.data.tokenizer.update(name="bytes", min_count=0)
    config.optimizer.update(learning_rate=3e-3, warmup_steps=0, schedule="constant")
    config.train.update(steps=12, batch_size=8)
    ready = setup.prepare_experiment(build(config))
    learns(ready.program, next(ready.train_batches(0)))


def shrunk(name):
    config = load(name)
    config.model.update(SHRUNK)
    for stack in ("encoder_layers", "decoder_layers"):
        config.model[stack] = min(config.model[stack], 2)
    return config


def learns(built, batch):
    """Takes twelve steps on one batch."""
    now = initial_state.initial_state(built)
    losses = []
    for _ in range(12):
        now, metrics = built.train_step(now, batch)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all() and np.mean(losses[-3:]) < losses[0] - 0.1


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.d_model", 130, r"model.d_model=130, model.num_heads=4: .* try model.d_model=128"),
        ("model.num_kv_heads", 3, "num_heads=4, model.num_kv_heads=3: .* try model.num_kv_heads=2"),
        ("model.family", "gpt-2", "^model.family='gpt-2': .*no 'gpt-2'; did you mean 'gpt2'"),
        ("model.attention", "flash", "^model.attention='flash': attentions: no 'flash'"),
        ("model.activation", "gelu_tan", "did you mean 'gelu_tanh'"),
        ("model.norm_at", ("before",), "^model.norm_at=.* no 'before'"),
        ("model.encoder_layers", 2, "gpt2 has decoder layers"),
        ("model.dropout", 1.5, r"^model.dropout=1.5:.*probability.*\[0, 1\)"),
        ("model.head", "masked_lm", "no 'masked_lm'; choose from lm"),
        ("model.d_model", "wide", r"model.d_model='wide':.*not str"),
        ("data.length", 0, "^data.length=0: must be positive"),
        ("data.length", 4096, r"data.length=4096, model.max_length=128:.*positions"),
        ("data.corpus", "wikipedia", "^data.corpus='wikipedia'"),
        ("objective", {"name": "masked_lm"}, "the objective is for encoder models"),
        ("optimizer.name", "adam", "^optimizer.name='adam': .*no 'adam'; did you mean 'adamw'"),
        ("train.accumulate", 3, "^train.batch_size=16, train.accumulate=3: "),
        ("mesh.data", 0, "^mesh={.* sizes must be positive"),
        ("mesh.mode", "pjit", "^mesh.mode='pjit': no 'pjit'"),
        ("seed", -1, "^seed=-1: must not be negative"),
        ("data", "text", "config.data='text': must be a section"),
        (
            "data.tokenizer.path",
            "http://host/t.json",
            r"^data.tokenizer.path='http://host/t.json': .*only gs:// and s3://",
        ),
        ("train.init_from", "s3:/bucket", "an address .* two slashes, s3://BUCKET"),
        ("data.path", "gs://bucket/a,hf://b", "data on the hub is hf://datasets/ORG/NAME"),
    ],
)
def test_what_cannot_work_is_said_at_the_door(path, value, message):
    config = load("gpt2_tiny").unlock()
    section, _, last = path.rpartition(".")
    node = functools.reduce(lambda node, name: node[name], filter(None, section.split(".")), config)
    with node.ignore_type():
        node[last] = value
    with pytest.raises(ConfigError, match=message):
        build(config)


def test_unknown_field_offers_the_nearest():
    config = load("gpt2_tiny").unlock()
    config.train.stesp = 3
    message = r"config.train.stesp: no such field; did you mean 'steps'"
    with pytest.raises(ConfigError, match=message):
        build(config)
