"""Faults as programs have them, planted in ours: each is named by the property that it breaks."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.checks import verify
from flaxformer_lite.contrib.verify.subject import TEXT_TOKENS, Subject
from flaxformer_lite.models import build_model
from flaxformer_lite.models.skeletons import encoder_decoder, inputs
from flaxformer_lite.nn.functions import masks, quantized
from flaxformer_lite.nn.modules import einsum, kv_cache
from flaxformer_lite.nn.modules.stack import Stack
from flaxformer_lite.nn.positions import rope
from flaxformer_lite.objectives import sums
from flaxformer_lite.pretrained import save
from flaxformer_lite.training import step
from tests.marks import daily
from tests.models.tiny import built, small

WINDOWS = {"windows": (3, 0)}


def mask_ahead(patch):
    patch.setattr(masks, "causal", lambda: masks.Window(None, 1))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class LateOrInBlocks(masks.Mask):
    """Causal, but rows from `first` on see the next token, and each row all of its block."""

    first: int = TEXT_TOKENS
    block: int = 1

    def allows(self, q_index_T, k_index_S):
        last_T = (q_index_T // self.block + 1) * self.block - 1
        last_T += (q_index_T >= self.first).astype(jnp.int32)
        return (k_index_S[None] <= last_T[:, None])[None]


def window_wider(patch):
    patch.setattr(masks, "window", lambda left, right=0: masks.Window(left + 1, right))


def cache_forgets_window(patch):
    patch.setattr(kv_cache, "slots", lambda capacity, index: index - jnp.arange(capacity)[::-1])


def counted(ids):
    return jax.lax.broadcasted_iota(jnp.int32, ids.shape, 1)


def positions_not_reset(patch):
    patch.setattr(inputs, "positions_in_segments", counted)


def documents_see_each_other(patch):
    patch.setattr(masks, "segments", lambda q, k=None: masks.full())


def padding_is_seen(patch):
    patch.setattr(masks, "padding", lambda keep: masks.full())


def positions_count_padding(patch):
    patch.setattr(inputs, "positions_from_mask", counted)


def source_padding_is_seen(patch):
    real = encoder_decoder.visibility_mask

    def seen(keep, q, k, *, structure=None):
        is_own = structure is None and q is not None
        return real(keep if is_own else None, q, k, structure=structure)

    patch.setattr(encoder_decoder, "visibility_mask", seen)


def divided_per_microbatch(patch):
    real = step._gradient

    def gradient(outputs, loss_sums, trained, params, microbatch, totals, key):
        own = sums.weight_sums(microbatch["targets"])
        grads, result = real(outputs, loss_sums, trained, params, microbatch, own, key)
        factor = totals["weights"] / own["weights"] / 2
        return jax.tree.map(lambda x: x * factor, grads), result

    patch.setattr(step, "_gradient", gradient)


def layers_scanned_backwards(patch):
    real = nn.scan

    def scan(*args, **options):
        return real(*args, reverse=True, **options)

    patch.setattr("flaxformer_lite.nn.modules.stack.nn.scan", scan)


def saved_in_half_precision(patch):
    real = save.Pieces.__array__

    def half(self, dtype=None, copy=None):
        return real(self).astype(jnp.bfloat16).astype(np.float32)

    patch.setattr(save.Pieces, "__array__", half)


def scales_are_rounded(patch):
    real = quantized.dequantize_after

    def dequantize(x, codes, scale, form):
        return real(x, codes, scale * 1.01, form)

    patch.setattr(quantized, "dequantize_after", dequantize)


def codes_are_cut(patch):
    real = quantized.to_codes

    def cut(x, axes, dtype, noise=None):
        return real(x, axes, dtype, jnp.zeros(()))

    patch.setattr(quantized, "to_codes", cut)


def angles_in_half_precision(patch):
    real = rope.Rope.phase

    def phase(self, positions, head_dim):
        return real(self, positions.astype(jnp.bfloat16).astype(jnp.int32), head_dim)

    clean = Subject.run

    def run(self, given):
        if self.cfg.dtype == "bfloat16":
            patch.setattr(rope.Rope, "phase", phase)
        try:
            return clean(self, given)
        finally:
            patch.setattr(rope.Rope, "phase", real)

    patch.setattr(Subject, "run", run)


def change_inputs(patch, change):
    real = Stack.__call__

    def call(self, x_BTD, *args, **options):
        return real(self, change(x_BTD), *args, **options)

    patch.setattr(Stack, "__call__", call)


def texts_share_a_mean(patch):
    change_inputs(patch, lambda x_BTD: x_BTD - x_BTD.mean(axis=0, keepdims=True))


def rows_read_the_one_before(patch):
    change_inputs(patch, lambda x_BTD: x_BTD.at[1:].add(x_BTD[:-1]))


def dropout_left_on(patch):
    def drop(x_BTD):
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x_BTD.shape), x_BTD, 0)

    change_inputs(patch, drop)


# by fault: family, fields of its config, the check, and the property that is named
FAULTS = {
    mask_ahead: ("gpt2", {}, "causal", "causal: outputs"),
    window_wider: ("mistral", {"windows": (3,)}, "window", "window"),
    cache_forgets_window: ("gpt2", WINDOWS, "cache", "cache equals the whole pass"),
    positions_not_reset: ("gpt2", {}, "packing", "packed equal separate: outputs"),
    documents_see_each_other: ("bert", {}, "packing", "packed documents: outputs"),
    padding_is_seen: ("bert", {}, "padding", "padding on the right"),
    positions_count_padding: ("gpt2", {}, "padding", "padding on the left"),
    source_padding_is_seen: ("t5", {}, "padding", "padding on the right"),
    texts_share_a_mean: ("bert", {}, "padding", "batch-mate"),
    rows_read_the_one_before: ("bert", {}, "padding", "batch-mate"),
    dropout_left_on: ("gpt2", {}, "padding", "padding on the right"),
    divided_per_microbatch: ("gpt2", {}, "accumulation", "accumulation"),
    layers_scanned_backwards: ("llama", {}, "scan", "scan and remat: outputs"),
    saved_in_half_precision: ("gpt2", {}, "saving", "save and load"),
    scales_are_rounded: ("llama", {}, "quantized", "quantized int8: outputs"),
    codes_are_cut: ("llama", {"mlp_dim": 28}, "quantized", "quantized int8: matrices"),
    angles_in_half_precision: ("llama", {}, "bfloat16", "bfloat16 far from the start"),
}
DAILY = (mask_ahead, positions_not_reset, divided_per_microbatch, saved_in_half_precision)


def faults_of(*args, **options):
    return [one.property for one in verify(*args, **options) if one.verdict == "FAULT"]


@pytest.mark.parametrize("plant", daily(FAULTS, DAILY), ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named(plant, monkeypatch):
    family, fields, check, named = FAULTS[plant]
    # a size of no other test, as programs are kept by the model's config
    size = 40 + list(FAULTS).index(plant)
    subject = built(small(family, vocab_size=size, **fields))
    plant(monkeypatch)
    assert named in faults_of(*subject, checks=[check])


LEAKS = [
    (TEXT_TOKENS // 2, 1),
    (TEXT_TOKENS - 2, 1),
    (TEXT_TOKENS, 4),
    (TEXT_TOKENS, TEXT_TOKENS // 2),
]


@pytest.mark.parametrize(("first", "block"), daily(LEAKS, LEAKS[:1]))
def test_a_leak_in_any_part_of_a_text_is_named(first, block, monkeypatch):
    subject = built(small("gpt2", vocab_size=70 + first + block, max_length=32))
    monkeypatch.setattr(masks, "causal", lambda: LateOrInBlocks(first, block))
    named = faults_of(*subject, checks=["causal", "generate"])
    assert {"causal: outputs", "generate in a batch equals the whole pass"} <= set(named)


class Own(nn.Module):
    """A causal module that sums what it has read."""

    leak: str = ""

    @nn.compact
    def __call__(self, ids, attention_mask=None):
        x = nn.Embed(50, 8)(ids)
        if attention_mask is not None and self.leak != "padding":
            x *= attention_mask[..., None].astype(x.dtype)
        total = jnp.cumsum(x, axis=1)
        after = jnp.roll(x, -1, axis=1)
        if self.leak == "gradient":
            total += after - jax.lax.stop_gradient(after)
        if self.leak == "future":
            total += after
        return nn.Dense(50)(jnp.sin(total))


@pytest.mark.parametrize(
    ("leak", "named"),
    [
        ("", []),
        ("gradient", ["causal: gradients"]),
        ("future", ["causal: outputs", "causal: gradients"]),
        ("padding", ["padding on the left"]),
    ],
)
def test_a_module_of_ones_own(leak, named):
    model = Own(leak)
    params = model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    findings = verify(model, params, causal=True, checks=["causal", "padding", "packing", "saving"])
    assert [one.property for one in findings if one.verdict == "FAULT"][: len(named)] == named
    skipped = {one.property: one.why for one in findings if one.verdict == "not checked"}
    why = {"packing": "Own takes no segment_ids.", "saving": "Own is not a model of a family."}
    assert skipped == why


def test_a_bias_added_twice_differs_from_the_reference(tmp_path, monkeypatch):
    model, params = built(small("bert", vocab_size=90))
    ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    keep = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
    np.savez(tmp_path / "inputs.npz", input_ids=ids, attention_mask=keep)
    output = model.apply({"params": params}, ids, attention_mask=keep)
    logits = np.where(keep[..., None], output.logits, 7)  # padding is not compared
    np.savez(tmp_path / "outputs.npz", logits=logits)
    options = {"reference": tmp_path, "checks": ["causal"]}
    assert not faults_of(model, params, **options)
    real = einsum.Einsum._bias
    monkeypatch.setattr(einsum.Einsum, "_bias", lambda self, dtype: 2 * real(self, dtype))
    assert faults_of(model, params, **options) == ["reference: logits"]


def test_a_table_of_too_few_positions_is_told():
    def of(positions):
        model = build_model(small("bert", 1, max_length=positions))
        return model, jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 4), int))["params"]

    (finding,) = verify(*of(8), checks=("padding",))
    assert finding.difference is None and "no room for 5 tokens of padding" in finding.why
    with pytest.raises(ConfigError, match="a table of 5 positions is too short; needs 6"):
        verify(*of(5), checks=("padding",))
