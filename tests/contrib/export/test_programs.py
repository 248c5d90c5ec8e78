"""Exported programs, traced once with symbolic sizes, compute what the model does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict
from jax import export

from flaxformer_lite import ConfigError, generate
from flaxformer_lite.contrib.export.cases import (
    Case,
    largest_difference,
    load_cases,
    make_cases,
    pad_texts,
    save_cases,
)
from flaxformer_lite.contrib.export.programs import programs_of
from flaxformer_lite.contrib.export.stablehlo import open_stablehlo
from flaxformer_lite.contrib.export.weights import stored_as, widen_weights
from flaxformer_lite.nn.functions.pooling import pool
from flaxformer_lite.nn.functions.splade import splade
from flaxformer_lite.pretrained.sentences import DenseLayer, SentenceLayers
from tests.contrib.export.greedy import greedy
from tests.models.tiny import built, logits_of, small

ROWS = [[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]]
NEW = 3


def files_of(programs, params):
    """The programs as a file has them, as (name, inputs) -> outputs."""
    calls = {}
    for program in programs:
        run = functools.partial(lambda program, **arrays: program.function(params, arrays), program)
        calls[program.name] = export.export(jax.jit(run))(**program.inputs)

    def call(name, inputs):
        return {key: np.asarray(x) for key, x in calls[name].call(**inputs).items()}

    return call


@pytest.mark.parametrize(
    ("family", "number", "overrides"),
    [
        ("gpt2", 1, {}),
        pytest.param("gpt2", 2, {"windows": (3, 0)}, marks=pytest.mark.nightly),
        pytest.param("llama", 1, {"num_kv_heads": 2}, marks=pytest.mark.nightly),
        pytest.param("t5", 1, {}, marks=pytest.mark.nightly),
        pytest.param("bart", 1, {}, marks=pytest.mark.nightly),
    ],
)
def test_a_file_writes_what_generate_writes(family, number, overrides):
    model, params = built(small(family, number, **overrides))
    programs = programs_of(model)
    run = files_of(programs, params)
    start = model.cfg.decoder_start_token_id or 0
    is_pair = len(programs) == 2
    options = {"decoder_start_token_id": start} if is_pair else {}
    due = generate(model, params, ROWS, max_new_tokens=NEW, eos_token_id=None, **options)
    assert greedy(programs, run, ROWS, NEW, start).tolist() == due[:, -NEW:].tolist()
    cases = make_cases(programs, params, ROWS, start=start)
    assert max(largest_difference(cases, run).values()) < 1e-5
    if is_pair:  # the keys and values of a source are not read where it is padded
        case = next(case for case in cases if case.program == "decode")
        padded_BS = case.inputs["encoder_attention_mask"] == 0
        assert padded_BS.any()
        inputs = dict(case.inputs)
        for name in inputs:
            if name.startswith("source_key_values."):
                inputs[name] = np.where(padded_BS[:, None, :, None], np.float32(9), inputs[name])
        assert np.abs(run("decode", inputs)["logits"] - case.outputs["logits"]).max() < 1e-5


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("longt5", "local_global works by the length"),
        ("switch_transformers", "capacity_moe works by the length"),
        ("qwen3_next", "gated_delta works by the length"),
        ("recurrent", "other than keys and values"),
    ],
)
def test_parts_that_must_know_a_length_or_keep_states_are_refused(family, said):
    model, _ = built(small(family, 1))
    with pytest.raises(ConfigError, match=said):
        programs_of(model)


def test_an_encoder_computes_its_head_and_ignores_padding():
    model, params = built(small("bert", 1, head="sequence_classification", num_labels=3))
    (program,) = programs_of(model)
    assert list(program.inputs) == ["input_ids", "attention_mask", "token_type_ids"]
    assert program.outputs == ("logits",)
    inputs = pad_texts(program, ROWS)
    logits = files_of([program], params)("encode", inputs)["logits"]
    alone = logits_of(model, params, input_ids=jnp.asarray([ROWS[1]]))
    np.testing.assert_allclose(logits[1], alone[0], atol=1e-5)


def test_a_sentence_model_pools_and_normalizes():
    cfg = small("bert", 1, head="none")
    model, params = built(cfg)
    rng = np.random.default_rng(0)
    kernel_DO = rng.normal(size=(cfg.d_model, 6)).astype(np.float32)
    dense = DenseLayer(kernel_DO, rng.normal(size=6).astype(np.float32), "Tanh")
    for layers in (
        SentenceLayers(pooling="mean+first", normalize=True),
        SentenceLayers(pooling="max", dense=(dense,), normalize=False),
    ):
        (program,) = programs_of(model, layers)
        inputs = pad_texts(program, ROWS)
        vectors = files_of([program], params)("embed", inputs)["sentence_embedding"]
        apply = jax.jit(lambda params: model.apply({"params": params}, **inputs))  # noqa: B023
        hidden = apply(params).last_hidden_state
        pooled = pool(layers.pooling, hidden, inputs["attention_mask"], unit=False)
        np.testing.assert_allclose(vectors, layers.finish(np.asarray(pooled)), atol=1e-6)


@pytest.mark.nightly
def test_a_sparse_model_weighs_the_vocabulary():
    model, params = built(small("bert", 1))
    (program,) = programs_of(model, SentenceLayers(kind="sparse", pooling="max"))
    inputs = pad_texts(program, ROWS)
    weights = files_of([program], params)("embed", inputs)["sparse_embedding"]
    features = model.apply({"params": params}, **inputs, method="features")
    due = splade(features.projection, inputs["attention_mask"])
    np.testing.assert_allclose(weights, due, atol=1e-5)


def test_what_a_file_cannot_know_is_refused():
    model, _ = built(small("bert", 1, head="none"))
    layers = SentenceLayers(pooling="mean", include_prompt=False)
    with pytest.raises(ConfigError, match=r"include_prompt=false.*--task encode"):
        programs_of(model, layers)
    model, _ = built(small("gemma", 1, bidirectional_prompt=True))
    with pytest.raises(ConfigError, match="bidirectional_prompt=True: a file cannot tell"):
        programs_of(model)


def test_weights_are_stored_smaller():
    rng = np.random.default_rng(0)
    scales = {  # path -> (shape, shape of its scale)
        "embed/embedding": ((64, 32), (64, 1)),
        "lm_head/kernel": ((64, 32), (64, 1)),
        "attention/query/kernel": ((32, 4, 8), (1, 4, 8)),
        "mlp/experts/up/kernel": ((4, 32, 8), (4, 1, 8)),
        "up/kernel": ((32, 64), (1, 64)),
    }
    leaves = {path: rng.normal(size=shape) for path, (shape, _) in scales.items()}
    leaves["up/bias"] = np.ones(64)
    params = unflatten_dict({k: x.astype(np.float32) for k, x in leaves.items()}, sep="/")
    for weights, limit in (("float32", 0), ("float16", 2e-3), ("int8", 0.02)):
        stored = stored_as(weights, params)
        apart = jax.tree.map(lambda a, b: np.abs(a - b).max(), widen_weights(stored), params)
        assert max(jax.tree.leaves(apart)) <= limit
        assert apart["up"]["bias"] == 0
    for path, (_, shape) in scales.items():
        assert stored[path].integers.dtype == np.int8 and stored[path].scale.shape == shape


def test_cases_are_read_as_they_were_written(tmp_path):
    case = Case("encode", {"input_ids": np.ones((1, 2), np.int32)}, {"logits": np.ones(3)})
    save_cases(tmp_path / "cases.npz", [case])
    (read,) = load_cases(tmp_path / "cases.npz")
    assert read.program == "encode"
    assert read.inputs["input_ids"].tolist() == [[1, 1]]
    off = {"logits": np.array([1, 1, np.nan])}
    assert largest_difference([read], lambda name, inputs: off) == {"encode": np.inf}
    with pytest.raises(ConfigError, match="missing"):
        load_cases(tmp_path / "none.npz")


def test_files_of_strangers_are_refused(tmp_path):
    bomb = tmp_path / "bomb.npz"  # which would fill the memory
    np.savez_compressed(bomb, **{"0/encode/output/logits": np.zeros(10_000_000)})
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ConfigError, match="compressed 200 times"):
        load_cases(bomb)
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK\x03\x04 and no more")
    long = f"0/{'x' * 300}/output/logits"  # no name of a file
    for name in ("", "a", "0/encode/other/logits", "0/encode/input/input_ids", long):
        if name:
            np.savez(junk, **{name: np.ones(2)})
        with pytest.raises(ConfigError, match="export the model again"):
            load_cases(junk)
    case = Case("encode", {}, {"logits": np.ones((2, 3))})
    for outputs in ({}, {"logits": np.ones(3)}):
        with pytest.raises(ConfigError, match=r"logits must have shape \(2, 3\)"):
            largest_difference([case], lambda name, inputs, outputs=outputs: outputs)
    with pytest.raises(ConfigError, match="no program of jax"):
        open_stablehlo(junk)


@pytest.mark.nightly  # of the numbers of experts, tests/nn/feed_forwards
def test_experts_are_computed_without_sorting():
    model, params = built(small("qwen2_moe", 1))
    (program,) = programs_of(model)
    cases = make_cases([program], params, ROWS[:1])
    case = cases[0]
    due = logits_of(model, params, input_ids=case.inputs["input_ids"])
    np.testing.assert_allclose(case.outputs["logits"], due, atol=1e-5)
