"""A linen module from outside the package writes what calling it token by token would write."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    Rope,
    Stack,
    StackConfig,
    capture,
    from_nnx,
    generate,
    logit_lens,
    names_of,
    save_pretrained,
    score,
    to_nnx,
)
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.generate import stream

VOCAB = 50
LAYER = LayerConfig(mixer=AttentionConfig(num_heads=2, position=Rope()), feed_forward=MlpConfig())
LAYERS = StackConfig(num_layers=1, pattern=(LAYER,))


class Lm(nn.Module):
    """An embedding, a Stack and a head, as docs/python.md puts them together."""

    causal: bool = True
    max_length: int = 0

    @nn.compact
    def __call__(self, ids_BT):
        x_BTD = nn.Embed(VOCAB, 16)(ids_BT)
        head = nn.Dense(VOCAB, kernel_init=nn.initializers.normal(2.0))
        return head(Stack(LAYERS, causal=self.causal)(x_BTD))


@pytest.fixture(scope="module")
def params():
    return Lm().init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]


@pytest.mark.nightly
def test_generate_and_score_compute_what_the_module_alone_computes(params):
    prompts = [[5, 7, 9], [4]]
    written = generate(Lm(), params, prompts, max_new_tokens=5, return_scores=True)
    assert len(np.unique(written.sequences[:, -5:])) > 2
    apply = jax.jit(Lm().apply)
    for i, prompt in enumerate(prompts):
        row = written.sequences[i, 3 - len(prompt) :].tolist()
        assert row[: len(prompt)] == prompt
        logits = apply({"params": params}, jnp.asarray([row]))[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == row[len(prompt) :]
        logprobs = np.asarray(jax.nn.log_softmax(logits)).max(-1)
        np.testing.assert_allclose(written.logprobs[i], logprobs, rtol=1e-4, atol=1e-5)
        scores = score(Lm(), params, [prompt], [row[len(prompt) :]])
        np.testing.assert_allclose(scores.logprobs[0], logprobs, rtol=1e-4, atol=1e-5)
        assert scores.greedy.all()
    new = list(stream(Lm(), params, [[5, 7, 9]], max_new_tokens=5))
    assert np.concatenate(new, axis=1).tolist() == written.sequences[:1, 3:].tolist()


@pytest.mark.nightly
def test_beam_search_finds_at_least_what_greedy_search_finds(params):
    def likelihood(**options):
        row = generate(Lm(), params, [[5, 7]], max_new_tokens=3, **options)[0].tolist()
        return score(Lm(), params, [row[:2]], [row[2:]]).log_likelihood[0]

    assert likelihood(num_beams=VOCAB) >= likelihood()


def test_what_cannot_write_is_refused_with_the_way_out(params):
    def writing(model, params=params, **options):
        generate(model, params, [[1, 2]], **{"max_new_tokens": 2} | options)

    with pytest.raises(ConfigError, match=r"Lm: the logits .* change with .* after it.*causal"):
        writing(Lm(causal=False))
    with pytest.raises(ConfigError, match=r"Lm: its logits .* are NaN; check the parameters"):
        writing(Lm(), jax.tree.map(lambda x: x * jnp.nan, params))
    with pytest.raises(ConfigError, match=r"Stack: cannot be applied to ids.*logits \[B, T, V\]"):
        writing(Stack(LAYERS, causal=True))
    classifier = nn.Sequential([nn.Embed(VOCAB, 4), lambda x: x.mean(axis=1)])
    with pytest.raises(ConfigError, match=r"Sequential: returns shape \(1, 4\).*\[B, T, V\]"):
        writing(classifier, {"layers_0": {"embedding": jnp.ones((VOCAB, 4))}})
    with pytest.raises(ConfigError, match=r"NnxModel.*from_nnx"):
        writing(to_nnx(Lm(), params))
    with pytest.raises(ConfigError, match="max_length=4"):
        writing(Lm(max_length=4), max_new_tokens=9)
    with pytest.raises(ConfigError, match=r"logit_lens of Lm: .*package.*capture"):
        logit_lens(Lm(), params, jnp.ones((1, 2), jnp.int32))
    with pytest.raises(ConfigError, match=r"Lm:.*not a model.*family.*build_model"):
        save_pretrained("nowhere", Lm(), params)


@pytest.mark.nightly
def test_to_nnx_and_capture_take_parts_alone(params):
    ids = jnp.asarray([[5, 7, 9]])
    due = Lm().apply({"params": params}, ids)
    module = to_nnx(Lm(), params)
    np.testing.assert_array_equal(module(ids), due)
    assert generate(*from_nnx(module), ids, max_new_tokens=2).shape == (1, 5)
    output, values = capture(Lm(), params, ids)
    np.testing.assert_array_equal(output, due)
    assert values["Stack_0/layer_0/attention/weights"].shape == (1, 2, 3, 3)
    with pytest.raises(ConfigError, match="inputs of Lm: missing"):
        names_of(Lm())
    assert "Stack_0/layer_0" in names_of(Lm(), ids)
