"""Public functions that are called wrongly end in a sentence of ours, with the way out."""

import re

import jax
import jax.numpy as jnp
import pytest

import flaxformer_lite as lite
from flaxformer_lite.nn.functions import pooling, sampling
from flaxformer_lite.nn.functions.rotary import phase
from tests.models.tiny import built, small

Q = jnp.ones((2, 5, 4, 8))
X = jnp.ones((2, 5, 8))
IDS = jnp.ones((2, 5), jnp.int32)
WEIGHTS = jnp.ones((2, 4, 5, 5))
SQUARE = jnp.ones((5, 5), bool)
PHASE = phase(jnp.arange(5)[None], jnp.ones(2))


def twice(a):
    return jax.grad(lambda b: lite.attention(b, a, a, implementation="blockwise").sum())(a).sum()


CALLS = {
    "path is NoneType: must be the name of a directory": [
        lambda: lite.load_pretrained(None),
        lambda: lite.load_tokenizer(None),
    ],
    "family is a dict: must be a name, such as 'gpt2'": [lambda: lite.build_model({})],
    "length=-3: must be a positive integer": [lambda: lite.init_cache(small("gpt2"), 1, -3)],
    "batch=1.5: must be a positive integer": [lambda: lite.init_cache(small("gpt2"), 1.5, 3)],
    "init_cache of bert: has no decoder": [lambda: lite.init_cache(small("bert"), 1, 3)],
    "each must be [batch, length, heads, head_dim]": [lambda: lite.kernel_weights(Q[0], Q[0])],
    "batch and head_dim of q and k": [lambda: lite.kernel_weights(Q, Q[..., :3])],
    "q has 4 heads, k and v have 3": [lambda: lite.kernel_weights(Q, Q[:, :, :3])],
    "visible has shape (5, 5): must be": [lambda: lite.kernel_weights(Q, Q, visible_BTS=SQUARE)],
    "bandwidth=None: a distance, must": [lambda: lite.kernel_weights(Q, Q, bandwidth=None)],
    "must be [batch, heads, target, source]": [lambda: lite.pool(WEIGHTS[0], Q)],
    "batch and source must agree": [
        lambda: lite.pool(WEIGHTS, Q[:, :3]),
        lambda: lite.pool(WEIGHTS, Q[:, :, :3]),
    ],
    "q is NoneType: must be an array": [
        lambda: lite.attention(None, Q, Q),
        lambda: lite.kernel_weights(None, Q),
    ],
    "scale='1': must be one number": [lambda: lite.attention(Q, Q, Q, scale="1")],
    "softcap=-1.0: must be positive, or 0": [lambda: lite.attention(Q, Q, Q, softcap=-1.0)],
    "pass dropout_key=jax.random.key(": [lambda: lite.attention(Q, Q, Q, dropout_rate=0.5)],
    "bias is str: must be an array or a function": [lambda: lite.attention(Q, Q, Q, bias="alibi")],
    "attentions: None is no name; choose": [lambda: lite.attention(Q, Q, Q, implementation=None)],
    'no reverse mode over another derivative .*; take attention="dense"': [
        lambda: jax.make_jaxpr(jax.grad(twice))(Q)
    ],
    "phase is .*: must be a Phase, as a position encoding makes it": [
        lambda: lite.rotate(Q, Q),
        lambda: lite.rotate(Q, None),
    ],
    "x must be [batch, length, heads, head_dim], the phase": [
        lambda: lite.rotate(Q[0], PHASE),
        lambda: lite.rotate(Q[:, :3], PHASE),
    ],
    "must be [batch or 1, length] and [pairs]": [lambda: phase(jnp.arange(5), jnp.ones(2))],
    "labels are float32: must be integers": [lambda: lite.cross_entropy(X, X[..., 0])],
    "labels is NoneType: must be an array": [lambda: lite.cross_entropy(X, None)],
    "left=1.5, right=0): both must be whole numbers": [lambda: lite.window(1.5)],
    "k=1.5: must be from 0": [lambda: lite.nearest(Q[0, 0], Q[0, 0, 0], 1.5)],
    "x (2, 5, 8), keep None: must be [batch, length, width]": [lambda: lite.mean_pool(X, None)],
    "x (2, 5, 8), mask (1, 5): must be": [lambda: pooling.pool("mean", X, IDS[:1])],
    "(7,): must be [batch, vocabulary]": [lambda: sampling.top_p(jnp.ones(7), 0.5)],
    "merge_adapter of dict: is not a model": [lambda: lite.merge_adapter({}, {})],
}


@pytest.mark.parametrize("message", CALLS)
def test_a_wrong_call_is_told_the_way_out(message):
    pattern = ".*".join(re.escape(part) for part in message.split(".*"))
    for call in CALLS[message]:
        with pytest.raises((ValueError, TypeError), match=pattern):
            call()


@pytest.fixture(scope="module")
def gpt2():
    return built(small("gpt2"))


def test_parameters_of_another_model(gpt2):
    model, _ = gpt2
    _, params = built(small("llama"))
    for call in (
        lambda: model.apply({"params": params}, IDS),
        lambda: lite.logit_lens(model, params, IDS),
        lambda: lite.capture(model, params, IDS),
        lambda: lite.generate(model, params, [[1, 2]], max_new_tokens=1),
        lambda: lite.score(model, params, [[1]], [[2]]),
    ):
        with pytest.raises(ValueError, match=r"not those of this model.* init or load"):
            call()
    with pytest.raises(ValueError, match=r"too deep;.*parameters"):
        model.apply({"params": {"params": params}}, IDS)
    with pytest.raises(ValueError, match=r"must be {'params': params}"):
        lite.logit_lens(model, None, IDS)


def test_arguments_of_generation(gpt2):
    model, params = gpt2
    for prompts in ([], None, [1, 2]):
        with pytest.raises(ValueError, match=r"prompts:.*lists.* \[\[5, 7\]\]"):
            lite.score(model, params, prompts, prompts)
    with pytest.raises(ValueError, match=r"every=0: must be at least 1"):
        next(lite.stream(model, params, [[1]], max_new_tokens=2, every=0))
    with pytest.raises(ValueError, match="inputs='hello': is text; encode it"):
        lite.logit_lens(model, params, "hello")
    cache = lite.init_cache(small("llama", num_kv_heads=1), 2, 8)
    message = r"cache has 1 heads .* make one with init_cache\(model\.cfg"
    with pytest.raises(ValueError, match=message):
        model.apply({"params": params}, IDS, cache=cache, cache_index=0)
