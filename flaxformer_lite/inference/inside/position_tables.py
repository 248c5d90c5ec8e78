"""The tables of a model's position encodings.

They show what is added to embeddings, how heads rotate, and logits by distance.
"""

from collections.abc import Iterator
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.nn.positions.encoding import Encoding, hooks
from flaxformer_lite.types import Params

FEWEST = 16  # positions, so that short texts have pictures as well
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
    length = max(length, FEWEST)
    tables: list[PositionTable] = []
    for side in ("encoder", "decoder"):
        if side in params:
            tables += _tables(model, params, side, length)
    return tables


def _tables(model: nn.Module, params: Params, side: str, length: int) -> Iterator[PositionTable]:
    cfg = model.cfg.of_decoder if side == "decoder" else model.cfg
    span = cfg.position.span(cfg.max_length)
    count = length if span is None else min(length, span.stop)
    positions_1T = jnp.arange(count, dtype=jnp.int32)[None]
    numbers = [str(i) for i in range(count)]
    if "embed" in hooks(cfg.position):
        embed = f"{side}_embed" if model.skeleton == "encoder_decoder" else "embed"
        learned = params.get(embed, {}).get("position", {})
        width = model.inner_width if model.skeleton == "decoder" else cfg.embedding_width
        x_1TD = jnp.zeros((1, count, width), jnp.float32)
        added_TD = np.asarray(cfg.position.embed(learned, x_1TD, positions_1T))[0]
        name = f"{side}: {type(cfg.position).__name__}"
        columns = [str(i) for i in range(width)]
        if learned:
            norm_T1 = np.linalg.norm(added_TD, axis=-1, keepdims=True)
            units_TD = added_TD / np.maximum(norm_T1, 1e-12)
            yield PositionTable(name, LEARNED, numbers, numbers, units_TD @ units_TD.T)
        else:
            yield PositionTable(name, ADDED, numbers, columns, added_TD)
    shared: dict[Encoding, str] = {}  # where nn/modules/stack.py keeps the tables of each
    for layer, kind in enumerate(build_layers.stack(model.cfg, side).pattern):
        encoding = getattr(kind.mixer, "position", None)
        if kind.mixer is None or encoding is None or encoding in shared:
            continue
        shared[encoding] = f"position_{len(shared)}" if shared else "position"
        name = f"{side}: {type(encoding).__name__}"
        sizes = cfg.of_kind(cfg.kinds[layer])
        phase = encoding.phase(positions_1T, sizes.head_width)
        if phase is not None:
            cos_TP = np.asarray(phase.cos_BTP)[0]
            planes = [str(i) for i in range(cos_TP.shape[1])]
            yield PositionTable(name, TURNED, numbers, planes, cos_TP)
        if encoding.by_distance:
            if encoding.per_layer:
                name += f", layer {layer}"
                tables = params[side][f"layer_{layer}"][kind.mixer.name].get("position", {})
            else:
                tables = params[side].get(shared[encoding], {})
            ahead = count if side == "encoder" else 1
            ahead_S = np.arange(1 - count, ahead)
            heads = jnp.zeros((1, 1, sizes.num_heads, 1))  # only their number is read
            columns_1S = jnp.asarray(ahead_S, jnp.int32)[None]
            row_11 = jnp.zeros((1, 1), jnp.int32)
            bias = encoding.bias(tables, heads, row_11, columns_1S, bidirectional=side == "encoder")
            values_NS = np.broadcast_to(np.asarray(bias)[0, :, 0], (sizes.num_heads, len(ahead_S)))
            rows = [f"head {i}" for i in range(sizes.num_heads)]
            yield PositionTable(name, BIAS, rows, [str(i) for i in ahead_S], values_NS)
