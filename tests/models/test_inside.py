"""`output_attentions` and `output_hidden_states` return what torch transformers returns for the
same file."""

import functools
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import init_cache
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from tests.marks import daily
from tests.models.tiny import built, close, ids, small
from tests.pretrained.fixtures import ROOT, loaded, part

QUICK = (
    "bert_base",
    "gpt2_lm",
    "t5_conditional_generation",
)
FLAGS = {"output_attentions": True, "output_hidden_states": True}


@functools.cache
def theirs():
    """By fixture and field, each layer's array: tools/make_inside_fixtures.py."""
    found = defaultdict(lambda: defaultdict(dict))
    with np.load(ROOT / "inside.npz") as file:
        for key, value in file.items():
            name, field, layer = key.split("/")
            found[name][field][int(layer)] = value
    return found


def kept(field, inputs):
    """The rows that are not padding, [B, T], for states and for weights."""
    decoder = field.startswith(("decoder", "cross"))
    mask = inputs.get("decoder_attention_mask" if decoder else "attention_mask")
    return slice(None) if mask is None else mask == 1


@pytest.mark.parametrize("name", daily(theirs(), QUICK))
def test_fields_are_those_of_transformers(name):
    model, params = loaded(name)
    inputs = part(name, "default/in/")
    output = jax.jit(functools.partial(model.apply, **FLAGS))({"params": params}, **inputs)
    for field, layers in theirs()[name].items():
        ours = getattr(output, field)
        assert len(ours) == len(layers)
        for layer, due in layers.items():
            got = np.asarray(ours[layer])
            assert got.shape == due.shape
            rows = [x.swapaxes(1, 2) if field.endswith("attentions") else x for x in (got, due)]
            got, due = (x[kept(field, inputs)] for x in rows)
            assert np.abs(got - due).max() < 1e-5 * np.abs(due).max(), (field, layer)
    fields = [name for name in vars(output) if name.endswith(("hidden_states", "attentions"))]
    assert {name for name in fields if getattr(output, name) is not None} == set(theirs()[name])


@pytest.mark.nightly
def test_nothing_else_changes():
    """Neither the output, nor its dropout, nor what layers sow for the loss; nor does `init`."""
    cfg = small("gpt2", dropout=0.5, feed_forward=MoeConfig(num_experts=2))
    model, params = built(cfg)

    def run(**flags):
        apply = functools.partial(
            model.apply, mutable=["losses"], rngs={"dropout": jax.random.key(3)}, **flags
        )
        return jax.jit(apply)({"params": params}, ids())

    plain, losses = run()
    output, again = run(output_hidden_states=True)
    assert output.attentions is None and len(output.hidden_states) == 3
    jax.tree.map(close, (plain.logits, losses), (output.logits, again))
    assert len(jax.tree.leaves(losses)) == 2
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), ids(), **FLAGS))
    assert jax.tree.map(jnp.shape, shapes["params"]) == jax.tree.map(jnp.shape, params)


def test_a_step_with_a_cache_has_its_weights():
    cfg = small("gpt2", scan=True)
    model, params = built(cfg)
    inputs = {"input_ids": ids()[:, :4], "cache": init_cache(cfg, 2, 10)}
    step = jax.jit(functools.partial(model.apply, output_attentions=True))(
        {"params": params}, **inputs
    )
    assert step.hidden_states is None and step.cache is not None
    close(np.stack(step.attentions).sum(-1), np.ones((2, 2, 4, 4)))
