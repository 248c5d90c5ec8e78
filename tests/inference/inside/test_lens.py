"""The logit lens beside the equations of norm and head, and at the last layer the model's own
predictions."""

import jax
import numpy as np
import pytest

from flaxformer_lite import capture, logit_lens
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.word_vectors.models import word2vec
from tests.models.tiny import built, close, ids, inputs_of, small

FAMILIES = {
    "narrow": ("opt", {"embedding_size": 8, "norm_at": ("out",)}),
    "shared": ("albert", {}),
    "t5": ("t5", {}),
    "scanned": ("llama", {"scan": True}),
}


@pytest.mark.nightly  # as the last of the layers below
@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_layer_says_what_the_model_says(name):
    family, overrides = FAMILIES[name]
    cfg = small(family, **overrides)
    model, params = built(cfg)
    inputs = inputs_of(cfg, ids())
    lens = logit_lens(model, params, inputs, top_k=3)
    output = model.apply({"params": params}, **inputs)
    best = jax.lax.top_k(jax.nn.softmax(output.logits, axis=-1), 3)
    close(lens.probabilities_LBTK[-1], best[0])
    np.testing.assert_array_equal(lens.ids_LBTK[-1], best[1])
    assert lens.layers == ("embeddings", "layer 0", "layer 1")
    assert not np.allclose(lens.probabilities_LBTK[0], lens.probabilities_LBTK[-1]), (
        "the layers do something"
    )


@pytest.mark.nightly
def test_every_layer_goes_through_the_final_norm_and_the_head():
    model, params = built(small("gpt2"))
    read = lambda x: logit_lens(model, params, x, top_k=2).probabilities_LBTK  # noqa: E731
    shares = read(ids())
    close(jax.jit(read)(ids()), shares)
    _, states = capture(model, params, ids(), ("embed", "layer_*"))
    norm = {name: np.asarray(value) for name, value in params["decoder"]["final_norm"].items()}
    for found, x_BTD in zip(shares, map(np.asarray, states.values()), strict=True):
        centred = x_BTD - x_BTD.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + model.cfg.norm_eps)
        y_BTD = centred / deviation * norm["scale"] + norm["bias"]
        logits = y_BTD @ np.asarray(params["token_embed"]["embedding"]).T
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        close(found, np.sort(powers / powers.sum(-1, keepdims=True), axis=-1)[..., :-3:-1])


def test_ids_that_only_pad_the_table_are_not_ranked():
    model, params = built(small("gpt2"))
    every = logit_lens(model, params, {"input_ids": ids()}, top_k=37)
    some = logit_lens(model, params, {"input_ids": ids()}, top_k=3, vocab_size=20)
    assert np.asarray(some.ids_LBTK).max() < 20
    ranked = np.asarray(every.ids_LBTK).reshape(-1, 37)
    values = np.asarray(every.probabilities_LBTK).reshape(-1, 37)
    kept = [np.flatnonzero(row < 20)[:3] for row in ranked]
    want = [row[places] for row, places in zip(values, kept, strict=True)]
    close(np.asarray(some.probabilities_LBTK).reshape(-1, 3), want)
    with pytest.raises(ConfigError, match=r"top_k=21: must be in 1\.\.20"):
        logit_lens(model, params, {"input_ids": ids()}, top_k=21, vocab_size=20)


@pytest.mark.parametrize(
    ("head", "top_k", "message"),
    [
        ("none", 5, r"head='none': predicts no tokens; .*model.*head='lm'"),
        ("lm", 38, "top_k=38: must be in 1..37"),
    ],
)
def test_what_cannot_be_read_is_refused(head, top_k, message):
    model, params = built(small("gpt2", head=head))
    with pytest.raises(ConfigError, match=message):
        logit_lens(model, params, {"input_ids": ids()}, top_k=top_k)


def test_a_table_of_vectors_has_no_layers():
    model, params = built(word2vec.config("tiny", vocab_size=37))
    with pytest.raises(ConfigError, match=r"family='word2vec':.*no layers"):
        logit_lens(model, params, {"input_ids": ids()})
