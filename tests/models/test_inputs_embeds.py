"""Vectors in place of token ids: the same numbers, gradients, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import build_model, init_cache, registry
from flaxformer_lite.config import ConfigError
from tests.marks import daily
from tests.models.tiny import OWN, T, built, close, ids, inputs_of, logits_of, small

FAMILIES = [name for name in registry.available("models") if name not in OWN]
# the end token, or rows of a second table
OF_IDS = ("clip_text_model", "gemma4_text")
# One of each skeleton, and those that scale vectors, project them or read ids for positions.
DAILY = (
    "bert",
    "blenderbot_small",
    "electra",
    "esm",
    "gpt2",
    "granite",
    "m2m_100",
    "marian",
    "opt",
    "pegasus_decoder",
    "roberta",
    "t5",
    "t5gemma",
)


def vectors_of(model, params, x, stack, table="token_embed"):
    """What stands in place of the rows of x in a stack's table."""
    rows = params[table]["embedding"][x]
    # the scale is part of the table, except where transformers scales vectors too
    if stack in model.scaled_vectors:
        return rows
    if stack == "decoder" and model.cfg.family == "blenderbot_small":
        return rows
    return rows * jnp.asarray(model.cfg.embed_scale, rows.dtype)


def in_vectors(model, params, inputs):
    """The inputs with vectors in place of all ids."""
    inputs = dict(inputs)
    stack = "encoder"
    if model.skeleton == "decoder":
        stack = "decoder"
    inputs["inputs_embeds"] = vectors_of(model, params, inputs.pop("input_ids"), stack)
    if "decoder_input_ids" in inputs:
        table = "token_embed"
        if model.cfg.has_decoder_table:
            table = "decoder_token_embed"
        target = inputs.pop("decoder_input_ids")
        inputs["decoder_inputs_embeds"] = vectors_of(model, params, target, "decoder", table)
    return inputs


def padded(cfg, side="right"):
    """Two rows of which the second has three tokens of padding, and their mask."""
    pad = cfg.pad_token_id or 0
    x = np.array(ids())
    x[x == pad] = pad + 1
    hidden = slice(T - 3, None)
    if side == "left":
        hidden = slice(3)
    x[1, hidden] = pad
    keep = np.ones((2, T), np.int32)
    keep[1, hidden] = 0
    return jnp.asarray(x), jnp.asarray(keep)


def both(model, params, inputs):
    @jax.jit
    def call(params):
        vectors = in_vectors(model, params, inputs)
        given = model.apply({"params": params}, **inputs)
        return given, model.apply({"params": params}, **vectors)

    return call(params)


@pytest.mark.parametrize("family", daily([x for x in FAMILIES if x not in OF_IDS], DAILY))
def test_vectors_of_the_table_compute_what_ids_do(family):
    options = {}
    if family == "esm":  # what it does to tokens while their share of masks varies needs ids
        options["dropped_token_id"] = None
    cfg = small(family, 1, **options)
    if (cfg.pad_token_id or 0) >= cfg.vocab_size:
        cfg = small(family, 1, pad_token_id=0)
    model, params = built(cfg)
    x, keep = padded(cfg)
    inputs = inputs_of(model.cfg, x) | {"attention_mask": keep}
    due, got = both(model, params, inputs)
    kept = keep[..., None] != 0
    for name in ("last_hidden_state", "logits"):
        if getattr(due, name) is None:
            continue
        a = getattr(due, name)
        b = getattr(got, name)
        if model.skeleton != "encoder_decoder" and a.ndim == 3:
            a = jnp.where(kept, a, 0)
            b = jnp.where(kept, b, 0)
        close(b, a, 2e-6)


def test_vectors_are_scaled_where_transformers_scales_them():
    """Compared with torch 2.13 and transformers 5.23 on random vectors, to 2e-6."""
    scaled = {}
    for name in FAMILIES:
        model = registry.resolve("models", name).Model
        if model.scaled_vectors:
            scaled[name] = model.scaled_vectors
    assert scaled == {
        "granite": ("decoder",),
        "granitemoehybrid": ("decoder",),
        "hyperclovax": ("decoder",),
        "marian": ("decoder",),
        "marian_decoder": ("decoder",),
        "pegasus": ("decoder",),
        "pegasus_decoder": ("decoder",),
        "t5gemma": ("encoder", "decoder"),
    }


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_decoder_classifies_where_the_mask_says_that_a_text_ends(family, side):
    model, params = built(small(family, 1, head="sequence_classification", pad_token_id=0))
    x, keep = padded(model.cfg, side)
    due, got = both(model, params, {"input_ids": x, "attention_mask": keep})
    close(got.logits, due.logits, 2e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_positions_of_roberta_skip_what_the_mask_hides(side):
    model, params = built(small("roberta", 1, head="none"))
    x, keep = padded(model.cfg, side)
    due, got = both(model, params, {"input_ids": x, "attention_mask": keep})
    kept = keep[..., None] != 0
    close(
        jnp.where(kept, got.last_hidden_state, 0), jnp.where(kept, due.last_hidden_state, 0), 2e-6
    )


def test_the_choices_of_a_question():
    x = ids(batch=6).reshape(2, 3, T)
    model = registry.resolve("models", "bert").Model(small("bert", 1, head="multiple_choice"))
    params = jax.jit(model.init)(jax.random.key(0), x)["params"]
    due, got = both(model, params, {"input_ids": x, "attention_mask": jnp.ones_like(x)})
    assert got.logits.shape == (2, 3)
    close(got.logits, due.logits, 2e-6)


def test_a_soft_prompt_goes_on_with_ids_in_its_cache():
    model, params = built(small("gpt2", 1))
    x = ids()
    apply = jax.jit(lambda **inputs: model.apply({"params": params}, **inputs))
    vectors = np.asarray(params["token_embed"]["embedding"])[x[:, :6]]
    first = apply(inputs_embeds=vectors, cache=init_cache(model.cfg, 2, T))
    rest = apply(input_ids=x[:, 6:], cache=first.cache)
    got = np.concatenate([first.logits, rest.logits], axis=1)
    close(got, logits_of(model, params, input_ids=x))


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_the_gradient_of_vectors_is_the_one_of_their_rows(family):
    model, params = built(small(family, 1))
    x = jnp.arange(1, 1 + T, dtype=jnp.int32)[None]  # each row of the table once
    inputs = inputs_of(model.cfg, x)

    def score(table, vectors):
        whole = params | {"token_embed": {"embedding": table}}
        given = dict(inputs)
        if vectors is not None:
            del given["input_ids"]
            given["inputs_embeds"] = vectors
        return model.apply({"params": whole}, **given).last_hidden_state[0, 0].sum()

    table = params["token_embed"]["embedding"]
    by_vectors = jax.grad(score, argnums=1)(table, table[x])
    by_rows = jax.grad(score)(table, None)
    own = jax.grad(score)(table, table[x])  # the decoder's share of a common table
    assert by_vectors.shape == (1, T, 16) and jnp.abs(by_vectors).sum() > 0
    close(by_vectors[0], (by_rows - own)[x[0]], 1e-5)


@pytest.mark.parametrize(
    ("family", "inputs", "message"),
    [
        ("bert", {}, "input_ids, inputs_embeds: pass exactly one of them"),
        ("gpt2", {}, "input_ids, inputs_embeds: pass exactly one of them"),
        (
            "gpt2",
            {"input_ids": ids(), "inputs_embeds": jnp.zeros((2, T, 16))},
            "input_ids, inputs_embeds: pass exactly one of them",
        ),
        (
            "t5",
            {
                "input_ids": ids(),
                "decoder_input_ids": ids(),
                "inputs_embeds": jnp.zeros((2, T, 16)),
            },
            "input_ids, inputs_embeds: pass exactly one of them",
        ),
        (
            "t5",
            {
                "input_ids": ids(),
                "decoder_input_ids": ids(),
                "decoder_inputs_embeds": jnp.zeros((2, T, 16)),
            },
            "decoder_input_ids, decoder_inputs_embeds: pass exactly one of them",
        ),
        ("t5", {"inputs_embeds": jnp.zeros((2, T, 16))}, "decoder_input_ids is missing"),
        (
            "bert",
            {"inputs_embeds": jnp.zeros((2, T, 8))},
            r"inputs_embeds: must be floats \[batch, length, 16\], not float32 \(2, 10, 8\)",
        ),
        (
            "bert",
            {"inputs_embeds": jnp.zeros((2, T, 16), jnp.int32)},
            "must be floats .* not int32",
        ),
        (
            "bert",
            {"inputs_embeds": jnp.zeros((2, T, 16)), "attention_mask": jnp.ones((2, 3))},
            "attention_mask has shape",
        ),
        (
            "bert",
            {"inputs_embeds": jnp.zeros((2, T, 16)), "packing": jnp.zeros((1, 1, 20), jnp.int32)},
            "packing: packs ids; pass input_ids, not inputs_embeds",
        ),
        (
            "clip_text_model",
            {"inputs_embeds": jnp.zeros((2, T, 16))},
            "inputs_embeds: clip_text_model with head='none' looks for a token by its id",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(family, inputs, message):
    model, params = built(small(family, 1))
    with pytest.raises(ConfigError, match=message) as error:
        model.apply({"params": params}, **inputs)
    assert "\n" not in str(error.value)


OF_A_TOKEN = [
    (name, head)
    for name in registry.available("models")
    for head in getattr(registry.resolve("models", name).Model, "heads_of_ids", ())
    if head in registry.resolve("models", name).Model.heads
]
DAILY_OF_A_TOKEN = [("big_bird", "question_answering"), ("bart", "sequence_classification")]


@pytest.mark.parametrize(("family", "head"), daily(OF_A_TOKEN, DAILY_OF_A_TOKEN))
def test_a_head_that_looks_for_a_token_needs_ids(family, head):
    model = build_model(family, "tiny", head=head, eos_token_id=2, decoder_start_token_id=0)
    vectors = jnp.zeros((1, 3, model.cfg.embedding_width))
    inputs = {"inputs_embeds": vectors}
    if model.skeleton == "encoder_decoder":
        inputs["decoder_input_ids"] = ids(batch=1, length=3)
    with pytest.raises(ConfigError, match=f"head={head!r} looks for a token by its id"):
        jax.eval_shape(lambda: model.init(jax.random.key(0), **inputs))


def test_parameters_are_all_made_by_a_first_call_with_vectors():
    for family in ("bert", "gpt2"):
        model = build_model(family, "tiny", head="none")
        due = jax.eval_shape(lambda m=model: m.init(jax.random.key(0), ids()))
        vectors = jnp.zeros((2, T, model.cfg.embedding_width))
        got = jax.eval_shape(lambda m=model, v=vectors: m.init(jax.random.key(0), inputs_embeds=v))
        assert jax.tree.structure(got) == jax.tree.structure(due)
