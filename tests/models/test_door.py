"""Arguments that models accept and refuse: ids, shapes, lists, dtypes; symbolic lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from flaxformer_lite import build_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models import gpt2
from flaxformer_lite.nn.functions import masks
from tests.marks import daily
from tests.models.tiny import built, close, ids, inputs_of, small

ONES = np.ones((2, 10), np.int32)
REFUSED = {
    "negative id": ("gpt2", {"input_ids": ONES * -1}, r"input_ids holds -1: must be in 0\.\.36"),
    "id too large": ("bert", {"input_ids": ONES * 37}, r"input_ids holds 37"),
    "floats": (
        "gpt2",
        {"input_ids": ONES * 1.0},
        r"input_ids: must be integer ids \[batch, length\], not float64 \(2, 10\)",
    ),
    "one axis": ("gpt2", {"input_ids": ONES[0]}, r"not int32 \(10,\)"),
    "negative position": (
        "gpt2",
        {"position_ids": ONES * -1},
        r"position_ids holds -1: must be in 0\.\.15",
    ),
    "position too far": (
        "opt",
        {"position_ids": ONES * 16},
        r"position_ids holds 16: must be in -2\.\.15",
    ),
    "negative type": (
        "bert",
        {"token_type_ids": ONES * -1},
        r"token_type_ids holds -1: must be in 0\.\.1",
    ),
    "type of GPT-2": ("gpt2", {"token_type_ids": ONES * 40}, "token_type_ids holds 40"),
    "mask": (
        "gpt2",
        {"attention_mask": ONES[:, :9]},
        r"attention_mask has shape \(2, 9\): must be \[2, 10\]",
    ),
    "mask of an encoder": (
        "bert",
        {"attention_mask": ONES[:1]},
        r"attention_mask has shape \(1, 10\).*\(2, 10\)",
    ),
    "segments": ("bert", {"segment_ids": ONES[:, None]}, "segment_ids has shape"),
    "positions": ("llama", {"position_ids": ONES[:, :3]}, "position_ids has shape"),
    "fractions": (
        "llama",
        {"position_ids": ONES * 0.5},
        "position_ids: must be integers, not float64",
    ),
    "types": ("bert", {"token_type_ids": ONES[:, :3]}, "token_type_ids has shape"),
    "target ids": ("t5", {"decoder_input_ids": ONES * -100}, "decoder_input_ids holds -100"),
    "target mask": (
        "t5",
        {"decoder_attention_mask": ONES[:, :9]},
        "decoder_attention_mask has shape",
    ),
    "source mask": ("t5", {"attention_mask": ONES[:, :9]}, "attention_mask has shape"),
    "additive mask": (
        "bert",
        {"attention_mask": (ONES - 1) - 1e9},
        r"attention_mask holds -1e\+09: must be 1 for tokens",
    ),
    "additive target mask": (
        "t5",
        {"decoder_attention_mask": ONES * -1},
        "attention_mask holds -1.*not an additive mask",
    ),
    "rows": ("t5", {"decoder_input_ids": ONES[:1]}, "decoder_input_ids has 1 rows"),
}


@pytest.mark.parametrize(("family", "inputs", "message"), REFUSED.values(), ids=REFUSED)
def test_inputs_that_cannot_be_are_refused(family, inputs, message):
    model, params = built(small(family, number=1))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(
            lambda p: model.apply({"params": p}, **{**inputs_of(model.cfg, ONES), **inputs}), params
        )


def test_within_jit_ids_out_of_range_are_nan():
    model, params = built(small("bert", head="none", number=1))
    call = jax.jit(lambda **x: model.apply({"params": params}, **x).last_hidden_state)
    good = {"input_ids": ONES, "token_type_ids": ONES * 0, "position_ids": ONES}
    assert np.isfinite(call(**good)).all()
    for name in good:
        for bad in (-1, 99):
            assert np.isnan(call(**good | {name: good[name] * 0 + bad})).all(), (name, bad)


def test_fields_beside_a_config_are_changed_in_it():
    model = build_model(small("gpt2"), decoder_layers=3, dtype="bfloat16")
    assert (model.cfg.decoder_layers, model.cfg.dtype, model.cfg.d_model) == (
        3,
        "bfloat16",
        small("gpt2").d_model,
    )
    with pytest.raises(
        ConfigError,
        match=r"^preset='small':.*ModelConfig",
    ):
        build_model(small("gpt2"), "small")
    with pytest.raises(ConfigError, match="gpt2 has decoder layers"):
        build_model(small("gpt2"), encoder_layers=2)


def test_lists_are_ids():
    model, params = built(small("gpt2", number=1))
    x = ids(length=3)
    out = model.apply({"params": params}, x.tolist(), attention_mask=[[0, 1, 1], [1, 1, 1]]).logits
    close(
        out,
        model.apply(
            {"params": params}, x, attention_mask=np.array([[False, True, True], [True] * 3])
        ).logits,
    )


@pytest.mark.parametrize("family", daily(["bart", "mbart", "marian", "pegasus"], ("bart",)))
def test_a_constant_of_the_published_weights_is_not_trained(family):
    model, params = built(small(family, tie_embeddings=True, number=1))

    def loss(params):
        return jnp.square(model.apply({"params": params}, ONES, ONES).logits).mean()

    shapes = jax.tree.map(jnp.shape, params["lm_head"])
    assert shapes == {"bias": (37,)}
    assert not np.any(jax.jit(jax.grad(loss))(params)["lm_head"]["bias"])


def test_dtypes_may_be_dtypes():
    cfg = gpt2.config("tiny", dtype=jnp.bfloat16, param_dtype=np.dtype("float32"))
    assert (cfg.dtype, cfg.param_dtype) == ("bfloat16", "float32")
    for dtype, message in ((jnp.float16, "no 'float16'"), (object(), "a dtype or its name")):
        with pytest.raises(ConfigError, match=message):
            gpt2.config("tiny", dtype=dtype)


@pytest.mark.parametrize("family", daily(["gpt2", "bert", "t5"], ("gpt2",)))
def test_one_exported_program_takes_every_length(family):
    model, params = built(small(family, number=1))
    names = (*inputs_of(model.cfg, ONES), "attention_mask")
    sizes = jax.ShapeDtypeStruct(export.symbolic_shape("b, t"), jnp.int32)

    def forward(params, *arrays):
        return model.apply({"params": params}, **dict(zip(names, arrays, strict=True))).logits

    program = export.export(jax.jit(forward))(jax.eval_shape(lambda: params), *[sizes] * len(names))
    for batch, length in ((2, 10), (3, 7)):
        keep = np.ones((batch, length), np.int32)
        keep[0, -2:] = 0
        inputs = (*inputs_of(model.cfg, ids(batch=batch, length=length)).values(), keep)
        close(program.call(params, *inputs), jax.jit(forward)(params, *inputs), 1e-4)


def test_a_symbolic_length_needs_dense_attention():
    model, params = built(small("gpt2", attention="blockwise", number=1))
    (t,) = export.symbolic_shape("t")
    with pytest.raises(ConfigError, match="needs known lengths"):
        export.export(jax.jit(lambda x: model.apply({"params": params}, x).logits))(
            jax.ShapeDtypeStruct((1, t), jnp.int32)
        )


@pytest.mark.parametrize("shape", [(5, 5), (1, 5, 5), (1, 1, 5, 5)])
def test_masks_of_any_common_shape_mean_the_same(shape):
    mask = masks.dense(np.tri(5, dtype=np.int32).reshape(shape))
    np.testing.assert_array_equal(mask.dense(5), masks.causal().dense(5))


def test_a_misspelled_field_of_a_model_names_the_nearest():
    for build in (build_model("gpt2", "tiny").cfg, "gpt2"):
        with pytest.raises(ConfigError, match=r"^num_head: .*did you mean 'num_heads'"):
            build_model(build, num_head=3)
