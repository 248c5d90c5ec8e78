"""Public functions that are called wrongly end in a sentence of ours, with the way out."""

import contextlib
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
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
    "labels hold 9: must be in 0..7": [
        lambda: lite.cross_entropy(X, IDS + 8),
        lambda: lite.cross_entropy(lite.DeferredLogits(X, X[0, :8].repeat(2, 0)[:8]), IDS + 8),
    ],
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
    with pytest.raises(ValueError, match=r"must be \{'params': params\}"):
        lite.logit_lens(model, None, IDS)
    with pytest.raises(ValueError, match=r"params are empty; pass the ones that init"):
        lite.generate(model, {}, [[1, 2]], max_new_tokens=1)


def test_a_row_without_tokens(gpt2):
    model, params = gpt2
    for inputs in ({"input_ids": IDS[:, :0]}, {"inputs_embeds": jnp.zeros((2, 0, 16))}):
        with pytest.raises(ValueError, match=r"has shape \(2, 0.*; must have a token in each row"):
            model.apply({"params": params}, **inputs)


def test_traced_arguments_of_generation(gpt2):
    model, params = gpt2
    for call in (
        lambda: jax.vmap(lambda ids: lite.generate(model, params, ids, max_new_tokens=1))(
            IDS[None]
        ),
        lambda: jax.jit(lambda p: lite.generate(model, p, [[1]], max_new_tokens=1))(params),
        lambda: jax.jit(lambda ids: lite.score(model, params, ids, [[1]]))(IDS[:1]),
    ):
        with pytest.raises(ValueError, match=r"run outside of jit, vmap and grad"):
            call()


def test_weights_that_are_nan(gpt2, tmp_path, caplog):
    model, params = gpt2
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), params)
    with pytest.raises(ValueError, match=r"logits after prompt 0 are NaN; check that the param"):
        lite.generate(model, params, [[1]], max_new_tokens=1)
    lite.save_pretrained(tmp_path / "saved", model, params)
    lite.load_pretrained(tmp_path / "saved")
    assert [line.partition(",")[0] for line in caplog.messages] == [
        "28 of 28 tensors hold NaN",  # where they are written
        "36 of 36 tensors hold NaN",
    ]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_forked_process(gpt2):
    """Which would wait for the threads of its parent for ever."""
    model, params = gpt2
    model.apply({"params": params}, IDS)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                lite.generate(model, params, [[1]], max_new_tokens=1)
            except RuntimeError as error:
                code = 2 * ("a forked process cannot compute" in str(error))
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


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
