"""The model interface of generation, for decoders and encoder-decoders.

It reads a prompt, then one token at a time.
"""

import functools
from collections.abc import Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.inference.own_model import OwnConfig, OwnModel
from flaxformer_lite.models.skeletons.build_layers import init_cache
from flaxformer_lite.nn.functions import quantized, tuning
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.modules.cache import (
    SHARED,
    Cache,
    repeat_rows,
    take_rows,
    without_rings,
)
from flaxformer_lite.types import Params

OUTPUT_ROWS = "lm_head/rows"  # the table of the vocabulary in int8
Generator = nn.Module | OwnModel
# The caches of all layers, or for an OwnModel the tokens themselves.
Caches = Cache | jax.Array


@flax.struct.dataclass
class PromptRows:
    """The part of the state that is constant while rows grow."""

    start_B: jax.Array | np.ndarray  # int32, the first slot of each row that holds a token
    # bool, the encoder's tokens; None for a decoder
    source_mask_BS: jax.Array | np.ndarray | None = None


def is_encoder_decoder(cfg: ModelConfig | OwnConfig) -> bool:
    return bool(cfg.encoder_layers and cfg.decoder_layers)


def add_output_rows(model: Generator, params: Params) -> Params:
    """Returns parameters that a CPU multiplies fast, if the model holds its matrices in int8.

    Only where that was measured, or where the config asks for `matmul=int8`. They have each matrix
    of a layer a second time, with its outputs first, and the table of the vocabulary in int8.

    Gain: a token of SmolLM2 takes 20 CPU ms instead of 55, of eight rows 41 instead of 91; to turn
    the matrices takes 90 (jax 0.10.2, an Intel Xeon with AMX).
    """
    if not reads_output_rows(model):
        return params
    flat = flatten_dict(params, sep="/")
    if OUTPUT_ROWS in flat:
        return params
    return unflatten_dict(flat | make_output_rows(model, flat), sep="/")


def reads_output_rows(model: Generator) -> bool:
    """Returns whether a CPU multiplies the model's matrices in int8, by `quantized.OutputRows`."""
    if isinstance(model, OwnModel) or model.cfg.quantize != "int8" or model.cfg.scan:
        return False
    if not model.sharding.is_single_cpu:
        return False
    return model.cfg.matmul == "int8" or tuning.has_integer_tiles()


@functools.partial(jax.jit, static_argnames="model")
def make_output_rows(model, flat: dict[str, jax.Array]) -> dict[str, quantized.OutputRows]:
    rows = {}
    for path, codes in flat.items():
        kernel, _, part = path.rpartition("/")
        if part == "codes":
            turned = quantized.make_output_rows(codes, flat[f"{kernel}/scale"])
            if turned is not None:
                rows[f"{kernel}/rows"] = turned
    params = unflatten_dict(flat, sep="/")
    x_11D = jnp.zeros((1, 1, model.cfg.d_model), model.cfg.dtype)
    projection = model.apply({"params": params}, x_11D, method="project")
    codes_VD, scale_V1 = quantized.to_codes(projection.kernel_VD, (1,), jnp.int8)
    rows[OUTPUT_ROWS] = quantized.OutputRows(codes_VD, scale_V1[:, 0])
    return rows


@functools.partial(jax.jit, static_argnames=("model", "slots", "goes_back"))
def prefill(
    model: Generator,
    params: Params,
    tokens_BT: jax.Array,
    rows: PromptRows,
    source_BS: jax.Array | None,
    *,
    slots: int,
    goes_back: bool = False,
) -> tuple[jax.Array, Caches]:
    """Reads prompts, padded on the left, into new caches of `slots`.

    An encoder-decoder also takes the encoder's input `source_BS`. The caches keep all slots, for
    `read_window`, if it `goes_back`. Returns the logits [B, V] of the
    next token, and the caches.
    """
    if isinstance(model, OwnModel):  # the tokens themselves take the place of caches
        tokens_BS = jnp.pad(tokens_BT, ((0, 0), (0, slots - tokens_BT.shape[1])))
        last = tokens_BT.shape[1] - 1
        return model.next_logits(params, tokens_BS, jnp.asarray(rows.start_B), last), tokens_BS
    cache = init_cache(model.cfg, tokens_BT.shape[0], slots)
    if goes_back:
        cache = without_rings(cache, slots)
    encoded_BSD = None
    if source_BS is not None:
        encoded_BSD = model.apply(
            {"params": params}, source_BS, attention_mask=rows.source_mask_BS, method="encode"
        )
    return _decode(model, params, tokens_BT, rows, cache, 0, tokens_BT.shape[1], encoded_BSD)


def advance(
    model: Generator,
    params: Params,
    tokens_B: jax.Array,
    rows: PromptRows,
    cache: Caches | None,
    slot: jax.Array,
    slots: int,
) -> tuple[jax.Array, Caches]:
    """Reads one token per row into slot `slot` of `slots`.

    Returns the logits [B, V] of the next, and the caches.
    """
    if isinstance(model, OwnModel):
        tokens_BS = jax.lax.dynamic_update_slice_in_dim(
            _tokens(cache), tokens_B[:, None], slot, axis=1
        )
        return model.next_logits(params, tokens_BS, jnp.asarray(rows.start_B), slot), tokens_BS
    return _decode(model, params, tokens_B[:, None], rows, cache, slot, slots, None)


def _tokens(cache: Caches | None) -> jax.Array:
    assert isinstance(cache, jax.Array), "an OwnModel has no caches"
    return cache


def read_window(
    model: nn.Module,
    params: Params,
    tokens_BT: jax.Array,
    rows: PromptRows,
    cache: Caches | None,
    slot_B: jax.Array,
    slots: int,
) -> tuple[jax.Array, Cache]:
    """Reads T tokens per row, from a different slot on in each row, of `slots` in all.

    Slots from there on are written anew, whatever they held. Returns the last hidden state
    [B, T, D], and the caches. Every row is a call of its own under `vmap`, as layers know one slot.
    """
    assert isinstance(cache, Sequence), "an OwnModel has no caches"
    axis = batch_axis(model.cfg)

    def of_row(tokens_T, slot, row, layers):
        row = jax.tree.map(lambda x: jnp.asarray(x)[None], row)
        x_1TD, layers = _hidden(model, params, tokens_T[None], row, layers, slot, slots, None)
        return x_1TD[0], [layer and layer.replace(**dict.fromkeys(SHARED)) for layer in layers]

    if len(tokens_BT) == 1:  # caches of one example have no batch axis
        first = jax.tree.map(lambda x: x[0], rows)
        x_TD, grown = of_row(tokens_BT[0], slot_B[0], first, cache)
        x_BTD = x_TD[None]
    else:
        split = []
        axes = []
        for layer in cache:
            cross = {name: getattr(layer, name, None) for name in SHARED if name != "length"}
            cross = jax.tree.map(lambda x: jnp.expand_dims(x, axis + 1), cross)
            split.append(layer and layer.replace(**cross))
            axes.append(layer and jax.tree.map(lambda _: axis, layer).replace(length=None))
        mapped = jax.vmap(of_row, in_axes=(0, 0, 0, axes), out_axes=(0, axis))
        x_BTD, grown = mapped(tokens_BT, slot_B, rows, split)
    whole = []
    for old, new in zip(cache, grown, strict=True):
        whole.append(new and new.replace(**{name: getattr(old, name) for name in SHARED}))
    return x_BTD, whole


def project(model: nn.Module, params: Params, x_BTD: jax.Array) -> jax.Array:
    """Computes logits [B, T, V] of a hidden state."""
    x_N1D = x_BTD.reshape(-1, 1, x_BTD.shape[-1])
    projection: Any = model.apply({"params": params}, x_N1D, method="project")
    logits_N1V = _logits(projection)
    return logits_N1V.reshape(*x_BTD.shape[:2], -1)


def _decode(
    model,
    params: Params,
    tokens_BT,
    rows: PromptRows,
    cache,
    first: jax.Array | int,
    columns: int,
    encoded_BSD,
):
    x_BTD, cache = _hidden(model, params, tokens_BT, rows, cache, first, columns, encoded_BSD)
    return project(model, params, x_BTD[:, -1:])[:, 0], cache


def _hidden(
    model,
    params: Params,
    tokens_BT,
    rows: PromptRows,
    cache,
    first: jax.Array | int,
    columns: int,
    encoded_BSD,
):
    slots_1T = (first + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32))[None]
    positions_BT = jnp.maximum(slots_1T - rows.start_B[:, None], 0)
    if model.cfg.has_position_table:
        # A guess may reach beyond the table; what is there is not kept, but must not be NaN.
        positions_BT = jnp.minimum(positions_BT, model.cfg.max_length - 1)
    mask_BS = jnp.arange(columns, dtype=jnp.int32)[None] >= rows.start_B[:, None]
    decode = functools.partial(
        model.apply, {"params": params}, method="decode", cache=cache, cache_index=first
    )
    is_prompt = isinstance(first, int)  # the slots of later tokens are traced
    if model.cfg.bidirectional_prompt and is_prompt:
        decode = functools.partial(decode, prefix_mask=mask_BS)
    if is_encoder_decoder(model.cfg):
        decoder_inputs = {"decoder_attention_mask": mask_BS, "decoder_position_ids": positions_BT}
        return decode(tokens_BT, encoded_BSD, attention_mask=rows.source_mask_BS, **decoder_inputs)
    return decode(tokens_BT, attention_mask=mask_BS, position_ids=positions_BT)


def _logits(projection: DeferredLogits) -> jax.Array:
    """Computes logits [B, 1, V] of one position as W x^T, hiding the transpose.

    XLA:CPU would otherwise compute x W^T, which takes a third longer for a few rows x.
    """
    if projection.rows is not None:
        dots_BV = quantized.multiply_rows(projection.x[:, 0], projection.rows, bits=16)
        return projection.from_dots(dots_BV[:, None])
    kernel_VD = projection.kernel_VD.astype(projection.x.dtype)
    dots_VB = jnp.einsum(
        "VD,BD->VB", kernel_VD, projection.x[:, 0], preferred_element_type=jnp.float32
    )
    return projection.from_dots(jax.lax.optimization_barrier(dots_VB).T[:, None])


def batch_axis(cfg: ModelConfig) -> int:
    """Returns the batch axis of the caches: after the layers, if those are stacked."""
    return 1 if cfg.scan and not cfg.share_layers else 0


@functools.partial(jax.jit, static_argnames=("cfg", "times"))
def repeat_caches(cfg: ModelConfig | OwnConfig, cache: Caches, times: int) -> Caches:
    """Repeats each example's caches `times` times in a row."""
    if isinstance(cfg, OwnConfig):
        return jnp.repeat(_tokens(cache), times, axis=0)
    return repeat_rows(cache, times, batch_axis(cfg))


def reorder(cfg: ModelConfig | OwnConfig, cache: Caches, rows: jax.Array) -> Caches:
    """Selects the caches of the given rows, in order."""
    if isinstance(cfg, OwnConfig):
        return jnp.take(_tokens(cache), rows, axis=0)
    return take_rows(cache, rows, batch_axis(cfg))
