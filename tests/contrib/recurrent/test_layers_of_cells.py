"""Recurrent layers in models: documents, padding, caches that cannot be rewound, both directions,
and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import Context, LayerKind, causal, init_cache, padding, registry, segments
from flaxformer_lite.config import ConfigError, Execution, LayerConfig, StackConfig
from flaxformer_lite.contrib.recurrent.mixers.gru import GruConfig
from flaxformer_lite.contrib.recurrent.mixers.lstm import LstmConfig
from flaxformer_lite.nn.functions.sharding import ActivationSharding, PlacedExecution, Shards
from flaxformer_lite.nn.modules.cache import init_stack_cache
from flaxformer_lite.nn.modules.layout import stack_layers
from flaxformer_lite.nn.modules.stack import Stack
from tests.models.tiny import T, built, close, ids, logits_of, small

NOPE = registry.resolve_class("positions", "nope")()
MIXED = (LayerKind(mixer=LstmConfig()), LayerKind())
MODELS = {"gru": {"mixer": GruConfig(units=12)}, "lstm and attention": {"pattern": MIXED}}


@pytest.fixture(
    params=[pytest.param("gru", marks=pytest.mark.nightly), "lstm and attention"], scope="module"
)
def decoder(request):
    return built(small("gpt2", position=NOPE, **MODELS[request.param]))


@functools.partial(jax.jit, static_argnums=(0, 3))
def read(model, params, tokens, cuts, **inputs):
    """The logits of tokens that are read in several calls, each of which continues the one
    before."""
    cache = init_cache(model.cfg, len(tokens), T)
    parts = []
    for start, stop in zip((0, *cuts), (*cuts, T), strict=True):
        out = model.apply({"params": params}, tokens[:, start:stop], cache=cache, **inputs)
        parts = [*parts, out.logits]
        cache = out.cache
    return jnp.concatenate(parts, axis=1)


def test_documents_never_meet_not_even_in_parts(decoder):
    model, params = decoder
    x = ids()
    ids_BT = jnp.asarray([[1] * 3 + [2] * 5 + [0, 3], [1] + [2] * 9], jnp.int32)
    packed = logits_of(model, params, input_ids=x, segment_ids=ids_BT)
    close(packed[:1, 3:8], logits_of(model, params, input_ids=x[:1, 3:8]))
    close(packed[1:, 1:], logits_of(model, params, input_ids=x[1:, 1:]))
    other = logits_of(model, params, input_ids=x.at[0, :3].set(5), segment_ids=ids_BT)
    np.testing.assert_array_equal(packed[:1, 3:], other[:1, 3:])
    parts = read(model, params, x, (4, 5), segment_ids=ids_BT)
    close(jnp.where(ids_BT[..., None] > 0, parts - packed, 0), jnp.zeros_like(packed))


def test_padding_on_either_side_is_passed_over(decoder):
    model, params = decoder
    x = ids()
    alone = logits_of(model, params, input_ids=ids()[:, 3:8])
    keep = jnp.asarray([[0] * 3 + [1] * 5 + [0] * 2] * 2, jnp.int32)
    close(logits_of(model, params, input_ids=x, attention_mask=keep)[:, 3:8], alone)
    close(read(model, params, x, (2, 6), attention_mask=keep)[:, 3:8], alone)


@pytest.mark.nightly
def test_scanned_layers_and_bfloat16(decoder):
    model, params = decoder
    cfg = model.cfg
    logits = logits_of(model, params, input_ids=ids())
    scanned = type(model)(dataclasses.replace(cfg, scan=True, remat="full"))
    stacked = stack_layers(params, len(cfg.kinds))
    close(logits_of(scanned, stacked, input_ids=ids()), logits)
    close(read(scanned, stacked, ids(), (3, 4)), logits, 1e-4)
    in_half = type(model)(dataclasses.replace(cfg, dtype="bfloat16"))
    half = logits_of(in_half, params, input_ids=ids())
    assert np.linalg.norm(half.astype(jnp.float32) - logits) < 3e-2 * np.linalg.norm(logits)


@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_state_is_continued_at_its_end_or_begun_again(decoder, scan):
    model, params = decoder
    if scan:
        params = stack_layers(params, len(model.cfg.kinds))
        model = type(model)(dataclasses.replace(model.cfg, scan=True))
    x = ids()
    cache = init_cache(model.cfg, 2, T)

    def apply(tokens, cache, index):
        return model.apply({"params": params}, tokens, cache=cache, cache_index=index)

    read_6 = jax.jit(lambda tokens: apply(tokens, cache, 0).cache)(x[:, :6])
    for index in (3, 7):
        with pytest.raises(ConfigError, match=rf"cache_index={index}: "):
            apply(x[:, 6:8], read_6, index)
    with pytest.raises(ConfigError, match=r"read 6.*tokens.*continue at 6"):
        apply(x[:, 6:8], read_6, 5)
    jitted = jax.jit(lambda index: apply(x[:, 6:8], read_6, index).logits)
    assert np.isnan(jitted(jnp.int32(5))).all() and np.isnan(jitted(jnp.int32(7))).all()
    whole = logits_of(model, params, input_ids=x)
    close(jitted(jnp.int32(6)), whole[:, 6:8])
    again = logits_of(model, params, input_ids=x[:, 6:8])
    close(jitted(jnp.int32(0)), again)
    close(jax.jit(lambda tokens: apply(tokens, read_6, 0).logits)(x[:, 6:8]), again)


@pytest.mark.parametrize("units", [pytest.param(0, marks=pytest.mark.nightly), 5])
def test_an_encoder_reads_both_ways(units):
    model, params = built(small("bert", mixer=GruConfig(units=units), number=1))
    x = ids()
    logits = logits_of(model, params, input_ids=x)
    for changed in (x.at[:, 0].set(3), x.at[:, -1].set(3)):
        other = logits_of(model, params, input_ids=changed)
        # each token sees the first and the last
        assert (np.abs(other - logits).max(axis=(0, 2)) > 1e-6).all()
    position = {"position_ids": jnp.arange(4, dtype=jnp.int32)[None]}
    alone = logits_of(model, params, input_ids=x[:, 3:7], **position)
    own = {"position_ids": jnp.asarray([[0] * 3 + [0, 1, 2, 3] + [0] * 3], jnp.int32)}
    keep = jnp.asarray([[0] * 3 + [1] * 4 + [0] * 3] * 2, jnp.int32)
    close(logits_of(model, params, input_ids=x, attention_mask=keep, **own)[:, 3:7], alone)
    documents = jnp.asarray([[1] * 3 + [2] * 4 + [3] * 3] * 2, jnp.int32)
    close(logits_of(model, params, input_ids=x, segment_ids=documents, **own)[:, 3:7], alone)


def stack(mixer, **options):
    record = StackConfig(num_layers=1, pattern=(LayerConfig(mixer=mixer),))
    module = Stack(record, causal=True, **options)
    x = jax.random.normal(jax.random.key(0), (2, 6, 8))
    return record, module, module.init(jax.random.key(1), x), x


def test_a_stack_alone_follows_the_mask_it_is_given():
    record, module, variables, x = stack(GruConfig())
    apply = jax.jit(module.apply)
    keep = jnp.asarray([[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    close(apply(variables, x, mask=padding(keep))[:, 2:], apply(variables, x[:, 2:]))
    mask = causal() & segments(jnp.asarray([[1, 1, 2, 2, 2, 2]] * 2))
    close(apply(variables, x, mask=mask)[:, 2:], apply(variables, x[:, 2:]))
    cache = init_stack_cache(record, 2, 6, 8)
    _, cache = apply(variables, x[:, :3], cache=cache, mask=mask)
    rest, _ = apply(variables, x[:, 3:], cache=cache, mask=mask)
    close(rest, apply(variables, x, mask=mask)[:, 3:])


def test_a_layer_alone_continues_under_a_mask_over_all_slots():
    layer = LstmConfig().module(Execution(), causal=True)
    x = jax.random.normal(jax.random.key(0), (2, 6, 8))
    variables = layer.init(jax.random.key(1), x)
    for mask in (
        padding(jnp.asarray([[0, 1, 1, 1, 0, 1]] * 2)),
        segments(jnp.asarray([[1, 1, 2, 2, 3, 3]] * 2)),
    ):
        cache = LstmConfig().init_cache(2, 6, 8, jnp.float32)
        _, cache = layer.apply(variables, x[:, :4], cache=cache, mask=mask)
        y, _ = layer.apply(variables, x[:, 4:], cache=cache, mask=mask)
        close(y, layer.apply(variables, x, mask=mask)[:, 4:])


class Cut(ActivationSharding):
    def num_shards(self, letter):
        return Shards(2, "context") if letter == "T" else super().num_shards(letter)


def test_what_cannot_be_is_refused():
    model, params = built(small("gpt2", mixer=GruConfig(), number=1))
    with pytest.raises(ConfigError, match=r"^mask, prefix_mask, windows:.*recurrent"):
        model.apply({"params": params}, ids(), prefix_mask=jnp.ones((2, T), jnp.int32))
    with pytest.raises(ConfigError, match=r"^windows, 4.*layer.*mixer.name='gru': .* window=0"):
        built(small("gpt2", mixer=GruConfig(), windows=(4,)))
    with pytest.raises(ConfigError, match=r"^d_model=15: is odd, and each direction"):
        built(small("bert", mixer=GruConfig(), d_model=15))
    _, module, variables, x = stack(GruConfig())
    with pytest.raises(ConfigError, match=r"^mesh.context=2: splits the sequence"):
        module.clone(execution=PlacedExecution(sharding=Cut())).apply(variables, x)
    encoder = GruConfig().module(Execution(), causal=False)
    with pytest.raises(ConfigError, match=r"^cache: an encoder's.*recurrent"):
        encoder.init(jax.random.key(0), x, Context(), GruConfig().init_cache(2, 6, 8, jnp.float32))


def test_caches_of_other_layers_rows_and_lengths():
    _, module, variables, x = stack(LstmConfig())
    attention = init_cache(small("gpt2"), 2, 6)

    lstm, _ = init_cache(small("gpt2", pattern=MIXED, d_model=8), 2, 6)
    with pytest.raises(ConfigError, match=r"is a LayerCache.*StateCache"):
        module.apply(variables, x, cache=attention[:1])
    with pytest.raises(ConfigError, match="cache has 2 rows for 1 rows"):
        module.apply(variables, x[:1], cache=[lstm])
    with pytest.raises(ConfigError, match=r"7 tokens from slot 0 on:.*cache.*6 slots"):
        module.apply(variables, jnp.ones((2, 7, 8)), cache=[lstm])
    model, params = built(small("gpt2"))
    with pytest.raises(ConfigError, match=r"is a StateCache.*LayerCache"):
        model.apply({"params": params}, ids()[:, :4], cache=[lstm, lstm])
