"""Recurrent decoders that attend: the papers' equations one token at a time, and what models of
them write."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import Context, generate, padding
from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.contrib.recurrent.mixers.gru import GruConfig
from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.contrib.recurrent.mixers.recurrent_attention import RecurrentAttentionConfig
from tests.inference.beam_reference import beam_search
from tests.models.tiny import built, close, ids, logits_of, small

B = 2
T = 5
S = 4
D = 6
U = 3
BAHDANAU = RecurrentAttentionConfig(units=U)
LUONG = RecurrentAttentionConfig(units=U, cell="lstm", score="multiplicative", query="current")
FAMILY = {"family": "seq2seq_recurrent"}
MODELS = {
    "bahdanau": FAMILY,
    "luong": FAMILY | {"mixer": LstmConfig(), "decoder_mixer": LUONG, "residual": "sequential"},
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def bahdanau(p, x, source, keep):
    """Appendix A.1.2 and A.2.2, a token at a time; the readout is that of Luong et al."""
    out = np.zeros((B, T, D))
    for b in range(B):
        s = np.zeros(U)
        columns = source[b, keep[b]]
        for t in range(T):
            added = s @ p["query"]["kernel"] + columns @ p["key"]["kernel"]
            energy = np.tanh(added) @ p["score"]["kernel"][0]
            c = np.exp(energy) @ columns / np.exp(energy).sum()
            inward = np.einsum("d,dzu->zu", x[b, t], p["input"]["kernel"]) + p["bias"][:3]
            r, z, n = inward + np.einsum("d,dzu->zu", c, p["context"]["kernel"])
            r_h, z_h, n_h = np.einsum("v,vzu->zu", s, p["kernel"])
            candidate = np.tanh(n + sigmoid(r + r_h) * (n_h + p["bias"][3]))
            z = sigmoid(z + z_h)
            s = (1 - z) * candidate + z * s
            out[b, t] = np.tanh(np.concatenate([s, c]) @ p["out"]["kernel"])
    return out


def luong(p, x, source, keep):
    """Equations 5, 7 and 8 ("general"), a token at a time."""
    out = np.zeros((B, T, D))
    for b in range(B):
        h = np.zeros(U)
        cell = np.zeros(U)
        columns = source[b, keep[b]]
        for t in range(T):
            gates = np.einsum("d,dzu->zu", x[b, t], p["input"]["kernel"]) + p["bias"]
            i, f, g, o = gates + np.einsum("v,vzu->zu", h, p["kernel"])
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(cell)
            score = np.exp(columns @ p["key"]["kernel"] @ h)
            c = score @ columns / score.sum()
            out[b, t] = np.tanh(np.concatenate([h, c]) @ p["out"]["kernel"])
    return out


@pytest.mark.parametrize(
    ("record", "paper"), [(BAHDANAU, bahdanau), (LUONG, luong)], ids=["bahdanau", "luong"]
)
def test_equals_the_papers_equations(record, paper):
    draw = np.random.default_rng(0)
    keep = np.asarray([[True] * S, [True, False, True, False]])
    x, source = (draw.standard_normal((B, n, D)).astype(np.float32) for n in (T, S))
    context = Context(encoder_output_BSD=jnp.asarray(source), cross_mask=padding(jnp.asarray(keep)))
    module = record.module(Execution(), causal=True)
    params = jax.jit(module.init)(jax.random.key(0), x, context)["params"]
    params = jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape).astype(np.float32), params)
    y = jax.jit(module.apply)({"params": params}, x, context)
    np.testing.assert_allclose(y, paper(params, x, source, keep), atol=2e-5)


@pytest.fixture(
    params=["bahdanau", pytest.param("luong", marks=pytest.mark.nightly)], scope="module"
)
def translator(request):
    return built(small(**MODELS[request.param]), seed=1)


@pytest.mark.nightly
def test_writes_what_the_whole_predicts_greedily_and_with_beams(translator):
    model, params = translator
    sources = np.asarray(ids(3))
    keep = np.ones((2, 10), np.int32)
    keep[1, 6:] = 0

    def next_logprobs(row, i):
        padded = jnp.asarray([row + [0] * (8 - len(row))], jnp.int32)
        source = {"input_ids": sources[i : i + 1], "attention_mask": jnp.asarray(keep[i : i + 1])}
        logits = logits_of(model, params, decoder_input_ids=padded, **source)
        return np.asarray(jax.nn.log_softmax(logits[0, len(row) - 1]))

    inputs = [row[kept != 0].tolist() for row, kept in zip(sources, keep, strict=True)]
    settings = dict(max_new_tokens=6, pad_token_id=0, eos_token_id=7, decoder_start_token_id=0)
    for beams in (1, 3):
        found = np.asarray(generate(model, params, inputs, num_beams=beams, **settings))
        for i, row in enumerate(found):
            of_row = functools.partial(next_logprobs, i=i)
            (want,), _ = beam_search(of_row, [0], beams=beams, new=6, eos={7})
            assert row[-6:].tolist()[: len(want) - 1] == want[1:]


def test_pairs_in_a_row_do_not_meet(translator):
    model, params = translator
    both = {"input_ids": ids(1), "decoder_input_ids": ids(2)}
    segments = jnp.asarray([[1] * 4 + [2] * 6] * 2, jnp.int32)
    marks = {"segment_ids": segments, "decoder_segment_ids": segments}
    packed = logits_of(model, params, **both, **marks)
    alone = logits_of(model, params, **{name: x[:, 4:] for name, x in both.items()})
    close(packed[:, 4:], alone)


def test_what_cannot_be_is_refused():
    x = jnp.ones((2, 3, D))
    record = RecurrentAttentionConfig()
    without = r"^encoder_output_BSD=None: .* reads an encoder"
    for message, make in {
        r"^mixer.name='recurrent_attention': attends to an encoder's.*decoder": lambda: (
            record.module(Execution(), causal=False)
        ),
        without: lambda: record.module(Execution(), causal=True).init(jax.random.key(0), x),
        f"{without}.*": lambda: built(small("gpt2", mixer=record)),
        r"^score='dot': no 'dot';.*choose.*multiplicative": lambda: RecurrentAttentionConfig(
            score="dot"
        ),
        r"^position.name='t5_buckets':.*no layer": lambda: built(small("t5", mixer=GruConfig())),
    }.items():
        with pytest.raises(ConfigError, match=message):
            make()


@pytest.mark.parametrize("query", ["previous", "current"])
def test_a_layer_alone_takes_masks_of_the_source_that_fit_it(query):
    layer = RecurrentAttentionConfig(query=query).module(Execution(), causal=True)
    x, source = (jax.random.normal(jax.random.key(n), (2, n, 8)) for n in (4, 5))
    context = Context(encoder_output_BSD=source)
    keep = jnp.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    variables = layer.init(jax.random.key(0), x, context)
    array = jnp.broadcast_to(keep[:, None], (2, 4, 5))
    contexts = (context.replace(cross_mask=mask) for mask in (array, padding(keep)))
    close(*(layer.apply(variables, x, each) for each in contexts))
    with pytest.raises(ValueError, match=r"^padding\(keep\) has 3 columns for 5 keys"):
        layer.apply(variables, x, context.replace(cross_mask=padding(keep[:, :3])))
