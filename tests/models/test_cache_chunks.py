"""Any cut of a text into calls with a cache gives the logits of one call without: chunks, windows,
padding, positions."""

import dataclasses
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import registry
from flaxformer_lite.models import gemma4_text
from flaxformer_lite.models.skeletons.build_layers import init_cache
from flaxformer_lite.nn.modules.cache import length_of
from tests.marks import daily
from tests.models.tiny import T, built, close, ids, inputs_of, is_encoder_decoder, small


def logits(model, params, x, encoded=None, **inputs):
    """Logits and cache of a call, of a decoder or of an encoder-decoder's decoder."""
    if not is_encoder_decoder(model.cfg):
        out = model.apply({"params": params}, x, **inputs)
        return out.logits, out.cache
    x, cache = model.apply({"params": params}, x, encoded, **inputs, method="decode")
    return model.apply({"params": params}, x, method="project").logits(), cache


compiled = jax.jit(logits, static_argnums=0)


def in_chunks(model, params, x, cuts, encoded=None, length=T, **inputs):
    cache = init_cache(model.cfg, len(x), length)
    out = []
    for start, stop in itertools.pairwise((0, *cuts, T)):
        chunk, cache = compiled(
            model, params, x[:, start:stop], None if start else encoded, cache=cache, **inputs
        )
        out.append(chunk)
    return jnp.concatenate(out, axis=1), cache


# layers of a window of 3 and of none, and two that read the keys of those before them
SHARED = tuple(
    gemma4_text.make_kind(
        window, mixer=dataclasses.replace(gemma4_text.KEYS, keys=keys), num_kv_heads=4 - window
    )
    for keys in ("kept", "earlier")
    for window in (3, 0)
)
CASES = {
    "learned, windows": ("gpt2", {"windows": (3, 0)}, 2, (5, 7)),
    "a chunk longer than its window": ("gpt2", {"windows": (3, 0), "scan": True}, 2, (2, 8)),
    "rotary, grouped, one row, all windows": (
        "llama",
        {"windows": (4,), "num_kv_heads": 2},
        1,
        (5, 8),
    ),
    "alibi, one row, scanned": ("bloom", {"scan": True}, 1, (4,)),
    "buckets": ("t5", {}, 2, (1, 4)),
    "buckets of each layer, windows, scanned": (
        "umt5",
        {"windows": (3, 0), "scan": True},
        2,
        (6, 8),
    ),
    "keys of earlier layers": ("gemma4_text", {"number": 4, "pattern": SHARED}, 2, (1, 2, 7)),
    "keys of earlier layers, scanned": (
        "gemma4_text",
        {"number": 8, "pattern": SHARED, "scan": True},
        2,
        (2, 8),
    ),
    "rotary, token by token, one row": ("llama", {"windows": (3, 0)}, 1, (5, 6, 7, 8, 9)),
    "short convolutions": ("lfm2", {}, 2, (1, 2, 7)),
    "short convolutions, one row, scanned": ("lfm2", {"number": 4, "scan": True}, 1, (4, 5)),
    "sinusoidal": ("transformer", {}, 2, (5,)),
    "shaw": ("gpt2", {"position": registry.resolve_class("positions", "shaw")()}, 2, (5, 6)),
}


DAILY = (
    "a chunk longer than its window",
    "short convolutions",
    "rotary, token by token, one row",
)


@pytest.mark.parametrize("case", daily(CASES, DAILY))
def test_chunks_equal_one_call(case):
    family, options, batch, cuts = CASES[case]
    model, params = built(small(family, **options))
    inputs = inputs_of(model.cfg, ids(batch=batch))
    encoded = None
    x = list(inputs.values())[-1]
    if is_encoder_decoder(model.cfg):
        encoded = model.apply({"params": params}, inputs["input_ids"], method="encode")
    whole = compiled(model, params, x, encoded)[0]
    chunks, cache = in_chunks(model, params, x, cuts, encoded)
    close(chunks, whole, 1e-4)
    assert int(length_of(cache)) == T


@pytest.mark.parametrize("family", daily(["gpt2", "llama", "mistral"], ("gpt2",)))
def test_a_mask_over_slots_tells_padding_and_positions(family):
    model, params = built(small(family, windows=(4,) if family == "mistral" else (0,), number=1))
    x = ids()
    keep = np.ones((2, T + 2), np.int32)
    keep[1, :3] = 0
    whole = compiled(model, params, x, attention_mask=keep[:, :T])[0]
    chunks, _ = in_chunks(model, params, x, (4, 9), length=T + 2, attention_mask=keep)
    assert chunks.shape == whole.shape
    close(chunks[0], whole[0], 1e-4)
    close(chunks[1, 3:], whole[1, 3:], 1e-4)


@pytest.mark.nightly
def test_a_text_goes_on_from_an_earlier_slot():
    model, params = built(small("gpt2", number=1))
    x = ids()
    _, cache = logits(model, params, x.at[:, 6:].set(1), cache=init_cache(model.cfg, 2, T))
    again, _ = logits(model, params, x[:, 6:], cache=cache, cache_index=6)
    close(again, logits(model, params, x)[0][:, 6:], 1e-4)


@pytest.mark.nightly
def test_a_prefix_is_read_in_one_call():
    model, params = built(small("gpt2", number=1))
    x = ids()
    prefix = np.arange(T)[None].repeat(2, 0) < 4
    whole = compiled(model, params, x, prefix_mask=prefix)[0]
    close(in_chunks(model, params, x, (5, 7), prefix_mask=prefix)[0], whole, 1e-4)
    assert np.isnan(in_chunks(model, params, x, (2,), prefix_mask=prefix)[0][:, :2]).all()
    with pytest.raises(ValueError, match="prefix_mask: marks slots from 2 on"):
        logits(model, params, x[:, :2], cache=init_cache(model.cfg, 2, T), prefix_mask=prefix)


REFUSED = {
    "no room": (dict(cache_index=5), 6, "6 tokens from slot 5 on: the cache ends at 10 slots"),
    "negative": (dict(cache_index=-1), 1, "cache_index=-1.*must not be negative"),
    "a gap": (
        dict(cache_index=7),
        1,
        "holds 6 positions, and the slots between were never written",
    ),
    "dropped": (dict(cache_index=3), 2, "a window of 3 has dropped"),
    "a short mask": (
        dict(attention_mask=np.ones((2, 6), int)),
        1,
        r"attention_mask has shape \(2, 6\).*reach.*6",
    ),
    "a mask of other rows": (
        dict(attention_mask=np.ones((3, 10), int)),
        1,
        r"must be \[2, slots\]",
    ),
    "a slot a row": (dict(cache_index=np.arange(2)), 1, "one number"),
}


@pytest.mark.parametrize(("inputs", "length", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_cache_cannot_do_is_refused(inputs, length, message):
    model, params = built(small("gpt2", windows=(3, 0)))
    cache = [layer.replace(length=np.int32(6)) for layer in init_cache(model.cfg, 2, T)]
    with pytest.raises(ValueError, match=message):
        logits(model, params, ids(length=length), cache=cache, **inputs)


@pytest.mark.nightly
def test_what_cannot_be_refused_within_jit_is_nan():
    model, params = built(small("gpt2", windows=(3, 0)))
    call = jax.jit(
        lambda x, cache, index: logits(model, params, x, cache=cache, cache_index=index)[0]
    )
    _, cache = logits(model, params, ids(length=6), cache=init_cache(model.cfg, 2, T))
    x = ids(length=3)
    for index, wrong in ((6, False), (0, False), (7, True), (8, True), (3, True)):
        assert np.isnan(call(x, cache, jnp.int32(index))).all() == wrong, index


def test_caches_of_other_rows_and_a_decoder_without_source_are_refused():
    model, params = built(small("gpt2", number=1))
    with pytest.raises(ValueError, match="cache has 3 rows for 2"):
        logits(model, params, ids(), cache=init_cache(model.cfg, 3, T))
    with pytest.raises(ValueError, match="needs a cache"):
        logits(model, params, ids(), cache_index=3)
    model, params = built(small("t5", number=1))
    with pytest.raises(ValueError, match="encoder_output is None"):
        logits(model, params, ids(), None, cache=init_cache(model.cfg, 2, T))


def test_window_cache_keeps_only_its_window():
    cfg = small("gpt2", windows=(3, 0))
    shapes = [jax.tree.leaves(layer)[0].shape[2] for layer in init_cache(cfg, 2, T)]
    assert shapes == [3, T]


@pytest.mark.parametrize("heads", [4, 2], ids=["multi-head", "grouped"])
def test_no_token_copies_the_cache_of_a_lone_example(heads):
    cfg = small("gpt2", num_kv_heads=heads)
    model, params = built(cfg)

    def write(index, state):
        tokens, cache = state
        out = model.apply(
            {"params": params},
            tokens,
            position_ids=index[None, None],
            cache=cache,
            cache_index=index,
        )
        return out.logits.argmax(axis=-1).astype(jnp.int32), out.cache

    program = jax.jit(
        lambda tokens, cache: jax.lax.fori_loop(0, T, write, (tokens, cache)), donate_argnums=1
    )
    text = program.lower(ids()[:1, :1], init_cache(cfg, 1, T)).compile().as_text()
    kept = (
        rf"= f32\[(1,)?{cfg.kv_heads},({T},{cfg.head_width}|{cfg.head_width},{T})\]\S*"
        r" (copy|transpose)\("
    )
    assert not re.findall(kept, text)
