"""Computes tables that show the position encodings of a model.

They show what is added to embeddings, how heads rotate, and what is added to logits.
"""

from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.nn.positions.encoding import Encoding, list_hooks
from flaxformer_lite.types import Params

MIN_POSITIONS = 16  # positions, so that short texts have pictures as well
LEARNED = "cosine similarity of the learned vectors of two positions"
ADDED = "what is added to the embedding at each position, by dimension"
TURNED = "cosine of the angle by which each pair of a head's dimensions is turned, by position"
BIAS = "what is added to a head's logits, by how far ahead of the query the key is"


class PositionTable(NamedTuple):
    """A table of signed values with its labels."""

    name: str
    note: str
    rows: list[str]
    columns: list[str]
    values_RC: np.ndarray


def position_tables(model: nn.Module, params: Params, length: int) -> list[PositionTable]:
    """Computes the tables of each position encoding of a model.

    They cover `length` positions, or as many as the encoding has.
    """
    params = unstack_layers(params)
    length = max(length, MIN_POSITIONS)
    tables: list[PositionTable] = []
    for side in ("encoder", "decoder"):
        if side in params:
            tables += _tables(model, params, side, length)
    return tables


def _tables(model: nn.Module, params: Params, side: str, length: int) -> Iterator[PositionTable]:
    cfg = model.cfg
    if side == "decoder":
        cfg = cfg.of_decoder
    span = cfg.position.span(cfg.max_length)
    count = length
    if span is not None:
        count = min(length, span.stop)
    if "embed" in list_hooks(cfg.position):
        yield _added_table(model, params, side, count)
    positions_1T = jnp.arange(count, dtype=jnp.int32)[None]
    names: dict[Encoding, str] = {}  # of the tables in nn/modules/stack.py
    for layer, kind in enumerate(build_layers.stack(model.cfg, side).pattern):
        encoding = getattr(kind.mixer, "position", None)
        if kind.mixer is None or encoding is None or encoding in names:
            continue
        names[encoding] = "position"
        if len(names) > 1:
            names[encoding] = f"position_{len(names) - 1}"
        title = f"{side}: {type(encoding).__name__}"
        sizes = cfg.of_kind(cfg.kinds[layer])
        phase = encoding.phase(positions_1T, sizes.head_width)
        if phase is not None:
            cos_TP = np.asarray(phase.cos_BTP)[0]
            planes = _numbers(cos_TP.shape[1])
            yield PositionTable(title, TURNED, _numbers(count), planes, cos_TP)
        if not encoding.by_distance:
            continue
        if encoding.per_layer:
            title += f", layer {layer}"
            tables = params[side][f"layer_{layer}"][kind.mixer.name].get("position", {})
        else:
            tables = params[side].get(names[encoding], {})
        yield _bias_table(title, encoding, tables, sizes.num_heads, count, side)


def _added_table(model: nn.Module, params: Params, side: str, count: int) -> PositionTable:
    """Returns the vectors that are added to embeddings, or the similarities of learned ones."""
    cfg = model.cfg
    if side == "decoder":
        cfg = cfg.of_decoder
    embed = "embed"
    if model.skeleton == "encoder_decoder":
        embed = f"{side}_embed"
    width = cfg.embedding_width
    if model.skeleton == "decoder":
        width = model.inner_width
    learned = params.get(embed, {}).get("position", {})
    x_1TD = jnp.zeros((1, count, width), jnp.float32)
    positions_1T = jnp.arange(count, dtype=jnp.int32)[None]
    added_TD = np.asarray(cfg.position.embed(learned, x_1TD, positions_1T))[0]
    title = f"{side}: {type(cfg.position).__name__}"
    if not learned:
        return PositionTable(title, ADDED, _numbers(count), _numbers(width), added_TD)
    norm_T1 = np.linalg.norm(added_TD, axis=-1, keepdims=True)
    units_TD = added_TD / np.maximum(norm_T1, 1e-12)
    cosines_TT = units_TD @ units_TD.T
    return PositionTable(title, LEARNED, _numbers(count), _numbers(count), cosines_TT)


def _bias_table(
    title: str, encoding: Encoding, tables: dict, heads: int, count: int, side: str
) -> PositionTable:
    """Returns the bias of each head by the distance from query to key; decoders look back only."""
    is_encoder = side == "encoder"
    farthest = 0
    if is_encoder:
        farthest = count - 1
    ahead_S = np.arange(1 - count, farthest + 1)
    heads_11N1 = jnp.zeros((1, 1, heads, 1))  # only their number is read
    columns_1S = jnp.asarray(ahead_S, jnp.int32)[None]
    row_11 = jnp.zeros((1, 1), jnp.int32)
    bias = encoding.bias(tables, heads_11N1, row_11, columns_1S, bidirectional=is_encoder)
    values_NS = np.broadcast_to(np.asarray(bias)[0, :, 0], (heads, len(ahead_S)))
    rows = [f"head {i}" for i in range(heads)]
    return PositionTable(title, BIAS, rows, [str(i) for i in ahead_S], values_NS)


def _numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]
