"""Runs that train an adapter over frozen weights, from the command line's flags on."""

import json

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import flaxformer_lite
from flaxformer_lite import load_pretrained, stack_layers
from flaxformer_lite.__main__ import main
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict
from flaxformer_lite.runs.start import setup
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.runs.start.initial_state import initial_state
from flaxformer_lite.training.evaluate import evaluate
from tests.cli import models
from tests.examples import trials
from tests.training import tiny_runs

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
LORA = {"model.adapter.name": "lora", "model.adapter.rank": 4, "optimizer.learning_rate": 3e-2}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The workdir of a run that took no step."""
    folder = tmp_path_factory.mktemp("base")
    page = trials.experiment_dict(folder, **{"model.decoder_layers": 1})
    return tiny_runs.untrained(from_config_dict(ExperimentConfig, page), folder / "run")


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """A folder with the base's published weights, and a run that trains an adapter of them."""
    folder = tmp_path_factory.mktemp("adapted")
    main(["convert", str(base), str(folder / "published")])
    targets = {"model.adapter.targets": "('query','up','down')"}
    return folder, tuned(folder, folder / "published", **targets)


def experiment(folder, base, adapter=LORA, **changes):
    changes = {**adapter, "train.init_from": base, **changes}
    return read_experiment(trials.experiment_dict(folder, **changes), given=list(changes))


def tuned(folder, base, **changes):
    flaxformer_lite.run(experiment(folder, base, **changes), folder / "run")
    run = workdir.read_run(folder / "run")
    run = run._replace(params=jax.device_get(load_pretrained(folder / "run")[1]))
    return run, trials.metrics.read(folder / "run" / "metrics.jsonl")


SPLIT = {
    "train.accumulate": 2,
    "model.scan": True,
    "model.remat": "full",
    "mesh.fsdp": 2,
    "mesh.tensor": 2,
}


def test_a_run_begins_as_its_base_trains_the_adapter_and_keeps_the_rest(base, adapted):
    check_adapted(base, *adapted[1])


@pytest.mark.nightly
def test_the_same_accumulated_scanned_and_sharded(tmp_path, base):
    targets = {"model.adapter.targets": "('query','up','down')"}
    check_adapted(base, *tuned(tmp_path, base, **SPLIT, **targets))


def check_adapted(base, new, records):
    old = workdir.read_run(base)
    held_out = setup.prepare_experiment(workdir.read_config(base))
    batches = held_out.eval_batches(), held_out.eval_data
    eval_step = held_out.program.eval_step
    before = evaluate(held_out.cfg.objective, eval_step, old.params, *batches)[0]
    np.testing.assert_allclose(records[0]["loss"], before["loss"], rtol=1e-5)
    assert records[-1]["loss"] < records[0]["loss"]
    was = old.params if not new.cfg.model.scan else stack_layers(old.params)
    was = flatten_dict(was, sep="/")
    now = flatten_dict(new.params, sep="/")
    assert all(path.rpartition("/")[2] in ("lora_a", "lora_b") for path in set(now) - set(was))
    assert len(set(now) - set(was)) == 6
    for path, leaf in was.items():
        np.testing.assert_array_equal(leaf, now[path], err_msg=path)
    assert all(leaf.any() for path, leaf in now.items() if path.endswith("lora_b"))


@pytest.mark.parametrize(
    "changes",
    [{}, {"model.scan": True, "mesh.fsdp": 2}],
    ids=["plain", "scanned and sharded"],
)
@pytest.mark.nightly
def test_dora_starts_from_the_weights_that_were_read(tmp_path, base, changes):
    dora = {"model.adapter.name": "dora", "model.adapter.targets": "('query','out','up','down')"}
    cfg = experiment(tmp_path, base, dora, **changes)
    program = setup.prepare_experiment(cfg).program
    state = initial_state(program, cfg.train.init_from)
    ids = jax.numpy.arange(8)[None] + 70
    old = workdir.read_run(base)
    due = jax.jit(old.model.apply)({"params": old.params}, ids).logits
    ours = jax.jit(program.model.apply)({"params": jax.device_get(state.params)}, ids).logits
    np.testing.assert_allclose(ours, due, rtol=1e-5, atol=1e-5)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
        lambda x: x.sharding, program.target
    )


def logits_of(model, params):
    ids = jax.numpy.arange(8)[None] + 70
    return jax.jit(model.apply)({"params": params}, ids).logits


def test_a_run_converts_to_merged_weights_and_to_an_adapter_of_its_base(adapted, capsys):
    tmp_path = adapted[0]
    capsys.readouterr()
    due = logits_of(*load_pretrained(tmp_path / "run"))
    plain = logits_of(*load_pretrained(tmp_path / "published"))
    assert np.abs(plain - due).max() > 1e-3
    main(["convert", str(tmp_path / "run"), str(tmp_path / "merged")])
    main(["convert", "--adapter", str(tmp_path / "run"), str(tmp_path / "adapter")])
    assert capsys.readouterr().out.endswith("adapter: the adapter of a gpt2, rank 4, in float32\n")
    for loaded in (
        load_pretrained(tmp_path / "merged"),
        load_pretrained(tmp_path / "published", adapter=tmp_path / "adapter"),
    ):
        np.testing.assert_allclose(logits_of(*loaded), due, rtol=1e-5, atol=1e-5)
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(tmp_path / "published")
    texts = []
    for more in (
        [str(tmp_path / "run")],
        [str(tmp_path / "published"), "--adapter", str(tmp_path / "adapter")],
    ):
        main(
            [
                "generate",
                "--prompt",
                "from 3: ",
                "--max_new_tokens",
                "8",
                "--temperature",
                "0",
                "--model",
                *more,
            ]
        )
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""
    with pytest.raises(SystemExit):
        main(["convert", "--adapter", str(tmp_path / "published"), str(tmp_path / "none")])
    assert "not a training workdir" in capsys.readouterr().err


def test_frozen_weights_take_no_optimizer_state(tmp_path, base):
    program = setup.prepare_experiment(experiment(tmp_path, base)).program
    flat = flatten_dict(program.target.params, sep="/")
    adapter = sum(leaf.size * 4 for path, leaf in flat.items() if "/lora_" in path)
    held = sum(
        leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.target.opt_state)
    )
    assert 2 * adapter <= held <= 2 * adapter + 16  # two moments and counters
    assert 20 * adapter < sum(leaf.size * 4 for leaf in flat.values())


def test_dropout_of_the_adapter_alone_is_drawn(tmp_path, base):
    program = setup.prepare_experiment(
        experiment(tmp_path, base, **{"model.adapter.dropout": 0.5})
    ).program
    assert not program.cfg.model.dropout
    assert "random_bits" in str(program.train_step.trace(program.target, program.batch).jaxpr)


def test_a_pattern_that_matches_nothing_is_refused_with_the_names_that_exist(tmp_path, base):
    with pytest.raises(
        ConfigError, match=r"adapter.targets='valeu': .*down, key, out, query, up, value"
    ):
        setup.prepare_experiment(
            experiment(tmp_path, base, **{"model.adapter.targets": "('query','valeu')"})
        )


@pytest.mark.nightly
def test_a_new_part_of_a_head_that_would_be_frozen_is_refused(tmp_path):
    body = models.directory(tmp_path / "body", "bert", "masked_lm")
    page = {
        "page": "classify",
        "train.init_from": body,
        "data.path": labelled(tmp_path),
        "data.length": 16,
    }
    cfg = task(tmp_path, **page)
    with pytest.raises(
        ConfigError,
        match=r"has no pooler/dense/bias, .*would be frozen; let model.adapter.trained match it",
    ):
        initial_state(setup.prepare_experiment(cfg).program, str(body))
    cfg = task(tmp_path, **page, **{"model.adapter.trained": "('^classifier/','^pooler/')"})
    assert (
        initial_state(setup.prepare_experiment(cfg).program, str(body))
        .params["pooler"]["dense"]["kernel"]
        .any()
    )


def task(folder, page, **changes):
    flags = {**LORA, "data.cache": folder / "cache", "mesh.data": 1, **changes}
    argv = [f"--config={page}", *(f"--config.{name}={value}" for name, value in flags.items())]
    return read_experiment(command_line.config(argv), given=list(flags))


def test_the_head_of_a_classifier_is_trained_whole(tmp_path):
    program = setup.prepare_experiment(
        task(tmp_path, "classify", **{"data.path": labelled(tmp_path), "data.length": 16})
    ).program
    moments = flatten_dict(
        program.target.opt_state.inner_states["trained"].inner_state[1].mu, sep="/"
    )
    kept = {path for path, leaf in moments.items() if hasattr(leaf, "shape")}
    assert {path for path in kept if "lora_" not in path} == {
        "classifier/dense/kernel",
        "classifier/dense/bias",
    }


def labelled(folder):
    lines = [
        f'{{"text": "weather {i} is {w}", "label": {i % 2}}}\n'
        for i, w in enumerate(("good", "bad") * 30)
    ]
    (folder / "labelled.jsonl").write_text("".join(lines))
    return folder / "labelled.jsonl"


@pytest.mark.nightly
def test_an_adapter_over_an_adapter_is_refused(tmp_path, base):
    first = tmp_path / "first"
    first.mkdir()
    tuned(first, base)
    again = {"train.init_from": first / "run"}
    for adapter, said in (({**LORA, "model.adapter.rank": 8}, "another"), ({}, "none")):
        cfg = experiment(tmp_path, base, adapter, **again)
        with pytest.raises(
            ConfigError, match=rf"was trained with an adapter, and this run has {said}; merge it"
        ):
            initial_state(setup.prepare_experiment(cfg).program, cfg.train.init_from)
    cfg = experiment(tmp_path, base, **again)
    state = initial_state(setup.prepare_experiment(cfg).program, cfg.train.init_from)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(state.params),
        jax.device_get(load_pretrained(first / "run")[1]),
    )


QLORA = {**LORA, "model.quantize": "nf4", "model.adapter.targets": "('query','up','down')"}
QLORA |= {"optimizer.learning_rate": 1e-2}


@pytest.mark.nightly  # of a layer, tests/nn/adapters/test_qwix.py
def test_an_adapter_is_trained_over_four_bits_and_merged(tmp_path, adapted):
    base = adapted[0] / "published"
    new, records = tuned(tmp_path, base, **QLORA)
    assert records[-1]["loss"] < records[0]["loss"]
    params = flatten_dict(new.params, sep="/")
    assert sum(leaf.dtype == np.uint8 for leaf in params.values()) == 6
    started = flatten_dict(load_pretrained(base, quantize="nf4")[1], sep="/")
    for path, leaf in started.items():
        np.testing.assert_array_equal(params[path], leaf, err_msg=path)
    due = logits_of(*load_pretrained(tmp_path / "run"))
    main(["convert", str(tmp_path / "run"), str(tmp_path / "merged")])
    main(["convert", "--adapter", str(tmp_path / "run"), str(tmp_path / "adapter")])
    merged = load_pretrained(tmp_path / "merged")
    beside = load_pretrained(base, adapter=tmp_path / "adapter", quantize="nf4")
    np.testing.assert_allclose(logits_of(*merged), due, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits_of(*beside), due, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "changes",
    [{"model.adapter.dropout": 0.1}, QLORA, QLORA | SPLIT],
    ids=["dropout", "few bits", "few bits, split"],
)
def test_a_stopped_run_continues_bit_for_bit(tmp_path, base, changes):
    schedule = {**LORA, "optimizer.schedule": "constant", "train.checkpoint_every": 3, **changes}
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    whole.mkdir(), parts.mkdir()
    at_once, _ = tuned(whole, base, **schedule)
    tuned(parts, base, **schedule, **{"train.steps": 3, "train.eval_every": 3})
    continued, _ = tuned(parts, base, **schedule)
    jax.tree.map(np.testing.assert_array_equal, at_once.params, continued.params)
    assert at_once.step == continued.step == 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.adapter.name": "dora"}, "starts from matrices in floats"),
        ({"model.matmul": "int8"}, "set model.matmul=float"),
        (
            {"model.feed_forward.name": "moe", "model.quantize": "none", "model.matmul": "int8"},
            "MoeConfig computes in floats only",
        ),
        ({"model.feed_forward.name": "moe"}, "experts cannot be adapted"),
    ],
)
def test_what_few_bits_cannot_hold_is_refused(tmp_path, base, changes, said):
    with pytest.raises(ConfigError, match=said):
        setup.prepare_experiment(experiment(tmp_path, base, QLORA | changes))


def test_few_bits_without_an_adapter_are_refused(tmp_path, base):
    with pytest.raises(ConfigError, match=r"model.quantize='nf4': .* model.adapter.name=lora"):
        experiment(tmp_path, base, {"model.quantize": "nf4"})  # before any data are read
