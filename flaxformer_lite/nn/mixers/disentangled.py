"""Disentangled attention (DeBERTa): content and relative position have vectors of their own.

Reference: He, Liu, Gao, Chen, "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021),
section 3.1 (arXiv:2006.03654).
"""

import functools
from dataclasses import dataclass, field
from typing import Annotated, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, Execution, parts, rules
from flaxformer_lite.config.parts import StackCall
from flaxformer_lite.nn.attentions.arguments import Bias
from flaxformer_lite.nn.attentions.dispatch import MAX_DENSE_PAIRS
from flaxformer_lite.nn.attentions.mask_structure import structure_of
from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.norms import layer_norm
from flaxformer_lite.nn.functions.sharding import ActivationSharding, sharding_of
from flaxformer_lite.nn.mixers.attention import (
    Attention,
    AttentionVariantConfig,
    slots_or_positions,
)
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context, PositionTables
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.positions.encoding import Encoding, Table, list_hooks

TERMS = ("c2p", "p2c")
DENSE = ("dense", "chunked_causal")  # implementations that hold all T x S weights
MIN_BUCKETS = 4  # buckets; with fewer, logarithms give none to far distances


@dataclass(frozen=True, kw_only=True)
class RelativeTable(Encoding):
    """The table P of relative positions that all layers share, with the norm of its rows.

    It has no hook: a mixer projects its rows.
    """

    rows: rules.Size
    norm: bool = False

    def tables(
        self, *, d_model: int, num_heads: int, head_dim: int, max_length: int
    ) -> dict[str, Table]:
        tables = {"relative": Table((self.rows, d_model), "RD", hook="bias")}
        if self.norm:
            tables["norm_scale"] = Table((d_model,), "D", "ones", "bias")
            tables["norm_bias"] = Table((d_model,), "D", "zeros", "bias")
        return tables


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig(AttentionVariantConfig):
    """The record of Disentangled.

    Attributes:
      terms: what is added to the content's scores: `c2p`, queries of the content with keys of the
        position, and `p2c`, queries of the position with keys of the content.
      buckets: k; distances below k / 2 have a row of the table each, those up to `max_distance`
        share the rest by their logarithm (DeBERTa-v2). 0: each distance has its own row.
      max_distance: distances beyond it count as it; 0 is the model's max_length.
      share_key: whether rows of the table are projected by the content's query and key, as in
        DeBERTa-v2, instead of by matrices of their own.
      norm_table: whether the rows of the table are normalized.
      norm_eps: of that norm.
    """

    terms: tuple[Annotated[str, rules.OneOf(TERMS)], ...] = TERMS
    buckets: rules.Count = 0
    max_distance: rules.Count = 0
    share_key: bool = False
    norm_table: bool = False
    norm_eps: rules.NotNegative = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise ConfigError(
                f"mixer.terms={self.terms}: needs c2p, p2c or both, each once; without either,"
                " leave out mixer.name."
            )
        plain = self.attention
        without = {
            "num_kv_heads": plain.kv_heads != plain.num_heads,
            "attention_softcap": plain.softcap,
            "windows": plain.window,
            "qk_norm": plain.qk_norm,
            "qkv_clip": plain.clip,
            "position": set(list_hooks(plain.position)) - {"embed"},
        }
        for name, value in without.items():
            if value:
                raise ConfigError(
                    f"model.{name}: disentangled attention has none besides its own positions;"
                    f" leave out {name}, or mixer.name."
                )
        fits = self.buckets >= MIN_BUCKETS and self.farthest > self.buckets // 2 + 1
        if self.buckets and not fits:
            raise ConfigError(
                f"mixer.buckets={self.buckets}, mixer.max_distance={self.farthest}: needs at least"
                f" {MIN_BUCKETS} buckets, and a distance that exceeds half of them by two or more,"
                " as farther ones share the other half; 0 buckets give each distance its own row."
            )

    @property
    def farthest(self) -> int:
        return self.max_distance or self.attention.max_length

    @property
    def span(self) -> int:
        """k: the table has 2 k rows, for distances from -k to k - 1."""
        return self.buckets or self.farthest

    @property
    def table(self) -> RelativeTable:
        return RelativeTable(rows=2 * self.span, norm=self.norm_table)

    def module(
        self, execution: Execution, *, causal: bool, name: str | None = None
    ) -> "Disentangled":
        return Disentangled(self.attention, execution, causal, self, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        rules: parts.PartitionRules = ((r"position(_\d+)?/(relative|norm_scale|norm_bias)$", ()),)
        attention = super().partition_rules()
        if self.share_key:
            return rules + attention
        projections = tuple(name for name, term in PROJECTIONS.items() if term in self.terms)
        kernels = rf"({'|'.join(projections)})/kernel$"
        rules += ((kernels, ("fsdp", "tensor", None)),)
        biased = [name for name in projections if name.removeprefix("position_") in self.biases]
        if biased:
            rules += ((rf"({'|'.join(biased)})/bias$", ("tensor", None)),)
        return rules + attention

    @property
    def biases(self) -> tuple[str, ...]:
        return self.attention.bias

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        context = super().prepare(with_padding(context), x_BTD, execution, **options)
        sizes = self.table_sizes(x_BTD.shape[-1])
        return context.replace(tables=options["tables"](self.table, **sizes))


PROJECTIONS = {"position_key": "c2p", "position_query": "p2c"}


class Disentangled(Attention):
    """Attention whose scores also compare content with relative positions.

        A_ij = (Q_i . K_j + Q_i . K^r_d(i,j) + K_j . Q^r_d(i,j)) / sqrt(H (1 + terms))

    d(i, j) is the row of the table for the distance i - j, and K^r = P W_k,r and Q^r = P W_q,r are
    its projections. The last term of the paper has d(j, i) (equation 4); the published models have
    d(i, j) in both, and so do we.

    As in transformers, a row of padding attends to all columns alike, padding included; its output
    is read by heads whose softmax is over all tokens. Packed rows and decoders leave it out.

    Reference: He et al. 2021, section 3.1, equations 2 to 4, and algorithm 1.
    """

    record: DisentangledConfig = DisentangledConfig()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        if not context.prepared:
            context = with_padding(context)
        x_BTD = self._check_cache(x_BTD, context, cache)
        query = self.projection("query", "BTD,DNH->BTNH", x_BTD.shape[-1])
        key = self.projection("key", "BSD,DKH->BSKH", x_BTD.shape[-1])
        q_BTNH = query(x_BTD)
        k_BTNH = key(x_BTD)
        v_BTNH = self.project("value", "BSD,DKH->BSKH", x_BTD)
        seen = self.extend(cache, k_BTNH, v_BTNH, context)
        q_BTNH, k_BSNH, v_BSNH = self.place_heads(q_BTNH, seen.k_BSKH, seen.v_BSKH)
        keys_RNH, queries_RNH = self._project_table(context, x_BTD, query, key)
        scale = self.scale_of(q_BTNH)
        q_slots_T = slots_or_positions(seen.q_index, q_BTNH)
        k_slots_S = slots_or_positions(seen.k_index, k_BSNH)
        q_places_BT = q_slots_T[None]
        k_places_BS = k_slots_S[None]
        if context.columns_BS is not None:  # padding may stand between tokens
            q_places_BT = jnp.take(context.columns_BS, q_slots_T, axis=1, mode="clip")
            k_places_BS = jnp.take(context.columns_BS, k_slots_S, axis=1, mode="clip")
        scores = PositionScores(
            k_BSNH, keys_RNH, queries_RNH, q_places_BT, k_places_BS, self.record, scale
        )
        bias: Bias | jax.Array = scores
        sharding = sharding_of(self.execution)
        all_rows = cache is None and context.columns_BS is None
        lengths = q_BTNH.shape[1], k_BSNH.shape[1]
        if all_rows and holds_weights(self.execution.attention, *lengths, sharding):
            bias = scores.of_all_rows(q_BTNH, gathers=ops_of(sharding).gathers_scores)
        args = self.self_arguments(context, x_BTD, seen, scale=scale, bias=bias)
        out_BTNH = self.attend(q_BTNH, k_BSNH, v_BSNH, args)
        packed = context.starts_BT is not None
        if context.keep_BT is not None and not (packed or cache is not None or self.causal):
            mean_B1NH = v_BSNH.mean(axis=1, keepdims=True)
            out_BTNH = jnp.where(context.keep_BT[:, :, None, None], out_BTNH, mean_B1NH)
        return self.project_out(out_BTNH, x_BTD), seen.cache

    @nn.nowrap
    def scale_of(self, q_BTNH: jax.Array) -> float:
        """Returns 1 / sqrt(H (1 + terms)), or the factor that the config sets."""
        if self.cfg.scale is not None:
            return self.cfg.scale
        return (q_BTNH.shape[-1] * (1 + len(self.record.terms))) ** -0.5

    def _project_table(
        self, context: Context, x_BTD: jax.Array, query: Einsum, key: Einsum
    ) -> tuple[jax.Array | None, jax.Array | None]:
        """Returns K^r and Q^r, [R, N, H] each, or None for a term that is left out."""
        record = self.record
        tables = context.tables
        d_model = x_BTD.shape[-1]
        if tables is None:
            sizes = record.table_sizes(d_model)
            tables = PositionTables(
                record.table, "bias", **sizes, execution=self.execution, name="position"
            )()
        table_RD = tables["relative"].astype(x_BTD.dtype)
        if record.norm_table:
            table_RD = layer_norm(
                table_RD, tables["norm_scale"], tables["norm_bias"], eps=record.norm_eps
            )
        table_1RD = Dropout("branch", self.execution)(table_RD)[None]
        keys_RNH = None
        queries_RNH = None
        if "c2p" in record.terms:
            if not record.share_key:
                key = self.projection("position_key", "BSD,DKH->BSKH", d_model)
            keys_RNH = key(table_1RD)[0]
        if "p2c" in record.terms:
            if not record.share_key:
                query = self.projection("position_query", "BTD,DNH->BTNH", d_model)
            queries_RNH = query(table_1RD)[0]
        return keys_RNH, queries_RNH


def with_padding(context: Context) -> Context:
    """Sets `keep_BT` where the mask says which tokens are padding, and the rows are not packed."""
    structure = None
    if isinstance(context.mask, Mask):
        structure = structure_of(context.mask)
    if structure is None or structure.keep_BS is None or structure.q_segments_BT is not None:
        return context
    return context.replace(keep_BT=structure.keep_BS)


def holds_weights(attention: str, T: int, S: int, sharding: ActivationSharding) -> bool:
    """Returns whether this attention holds all T x S weights, so that position scores may as well.

    Otherwise they are computed block by block.
    """
    if not isinstance(T, int) or not isinstance(S, int):  # symbolic lengths
        return False
    shards = sharding.num_shards("T").count
    return attention in DENSE or (attention == "auto" and T // shards * S <= MAX_DENSE_PAIRS)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class PositionScores:
    """Scores of content with positions: the `bias` of `attend`, a function of (q, rows, columns).

    Attributes:
      k_BSNH: keys of the content.
      keys_RNH, queries_RNH: projections of the table; None leaves the term out.
      q_places_BT, k_places_BS: positions of rows and columns, for distances; one row for all
        examples, or one each.
      record: gives the row of a distance.
      scale: factor on the scores.
    """

    k_BSNH: jax.Array
    keys_RNH: jax.Array | None
    queries_RNH: jax.Array | None
    q_places_BT: jax.Array
    k_places_BS: jax.Array
    record: DisentangledConfig = field(metadata={"static": True})
    scale: float = field(metadata={"static": True})

    def __call__(self, q_BTNH: jax.Array, rows_T: jax.Array, columns_S: jax.Array, /) -> jax.Array:
        """Returns float32 scores [B, N, T, S] of some rows and columns, by a gather."""
        q_places_BT = jnp.take(self.q_places_BT, rows_T, axis=1, mode="clip")
        k_places_BS = jnp.take(self.k_places_BS, columns_S, axis=1, mode="clip")
        row_BTS = self._row(q_places_BT[:, :, None] - k_places_BS[:, None, :])
        k_BSNH = jnp.take(self.k_BSNH, columns_S, axis=1, mode="clip")
        return self._gathered(q_BTNH, k_BSNH, row_BTS, slice(None))

    def of_all_rows(self, q_BTNH: jax.Array, *, gathers: bool) -> jax.Array:
        """Returns float32 scores [B, N, T, S] of all rows and columns, at positions 0, 1, 2 ...

        Args:
          q_BTNH: the queries.
          gathers: whether scores are gathered from those with all rows of the table. Else rows of
            scores over all distances are shifted into place (Dai et al. 2019, appendix B).
        """
        T = q_BTNH.shape[1]
        S = self.k_BSNH.shape[1]
        ahead = np.arange(1 - T, S)  # of a key, from its query
        if gathers:
            row_L = rows_of_distance(-ahead, self.record.span, *self._log)
            used = slice(int(row_L.min()), int(row_L.max()) + 1)
            behind_TS = np.arange(T)[:, None] - np.arange(S)[None, :]
            row_TS = rows_of_distance(behind_TS, self.record.span, *self._log)
            row_1TS = jnp.asarray(row_TS - used.start)[None]
            return self._gathered(q_BTNH, self.k_BSNH, row_1TS, used)
        scores_BNTS = jnp.zeros((), jnp.float32)
        if self.keys_RNH is not None:
            keys_LNH = self.keys_RNH[rows_of_distance(-ahead, self.record.span, *self._log)]
            scores_BNTS += shifted(_dots("BTNH,LNH->BNTL", q_BTNH, keys_LNH), S)
        if self.queries_RNH is not None:
            behind = -ahead[::-1]
            queries_LNH = self.queries_RNH[rows_of_distance(behind, self.record.span, *self._log)]
            scores_BNST = shifted(_dots("BSNH,LNH->BNSL", self.k_BSNH, queries_LNH), T)
            scores_BNTS += scores_BNST.swapaxes(-1, -2)
        return scores_BNTS * self.scale

    def _gathered(
        self, q_BTNH: jax.Array, k_BSNH: jax.Array, row_BTS: jax.Array, used: slice
    ) -> jax.Array:
        """Computes scores with the `used` rows of the table, and gathers them by `row_BTS`."""
        row_BNTS = row_BTS[:, None]
        scores_BNTS = jnp.zeros((), jnp.float32)
        if self.keys_RNH is not None:
            dots_BNTR = _dots("BTNH,RNH->BNTR", q_BTNH, self.keys_RNH[used])
            scores_BNTS += _take(dots_BNTR, row_BNTS, -1)
        if self.queries_RNH is not None:
            dots_BNRS = _dots("RNH,BSNH->BNRS", self.queries_RNH[used], k_BSNH)
            scores_BNTS += _take(dots_BNRS, row_BNTS, -2)
        return scores_BNTS * self.scale

    @property
    def _log(self) -> tuple[int, int]:
        return self.record.buckets, self.record.farthest

    def _row(self, distance: jax.Array) -> jax.Array:
        reach = last_distance(self.record.span, *self._log)
        rows_L = rows_of_distance(np.arange(-reach, reach + 1), self.record.span, *self._log)
        return jnp.asarray(rows_L)[jnp.clip(distance, -reach, reach) + reach]


def _take(dots: jax.Array, row_BNTS: jax.Array, axis: int) -> jax.Array:
    return jnp.take_along_axis(dots, row_BNTS, axis=axis, mode="promise_in_bounds")


def _dots(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b.astype(a.dtype), preferred_element_type=jnp.float32)


def shifted(x_BNTL: jax.Array, S: int) -> jax.Array:
    """Returns y[..., t, s] = x[..., t, T - 1 + s - t], [B, N, T, S], where L = T + S - 1.

    Rows that are one longer begin one later when they are read in rows of L.
    """
    *batch, T, L = x_BNTL.shape
    longer = jnp.pad(x_BNTL, ((0, 0), (0, 0), (0, 0), (0, 1)))
    flat = longer.reshape(*batch, T * (L + 1))[..., T - 1 : T - 1 + T * L]
    return flat.reshape(*batch, T, L)[..., :S]


def log_buckets(distance: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance, of the same sign; not bounded.

    With m = buckets / 2, distances up to m are buckets of their own, and a farther d is in bucket
    m + ceil((m - 1) log(d / m) / log((max_distance - 1) / m)), in float32 as published models have
    it.
    """
    middle = buckets // 2
    near = np.abs(distance) <= middle
    size = np.where(near, middle, np.abs(distance)).astype(np.float32)
    log_range = np.log(np.float32((max_distance - 1) / middle))
    steps = np.ceil(np.log(size / np.float32(middle)) / log_range * np.float32(middle - 1))
    far = (steps.astype(np.int64) + middle) * np.sign(distance)
    return np.where(near, distance, far)


def rows_of_distance(
    distance: np.ndarray, span: int, buckets: int, max_distance: int
) -> np.ndarray:
    """Returns the row of the table for each distance i - j, within 0 .. 2 span - 1.

    Reference: He et al. 2021, equation 3; buckets, the published code of DeBERTa-v2.
    """
    if buckets:
        distance = log_buckets(distance, buckets, max_distance)
    return np.clip(distance + span, 0, 2 * span - 1).astype(np.int32)


@functools.cache
def last_distance(span: int, buckets: int, max_distance: int) -> int:
    """Returns a distance from which on all have the same row, in either direction."""
    reach = max(span, max_distance)
    while buckets and log_buckets(np.asarray([reach]), buckets, max_distance)[0] < span:
        reach *= 2
    return reach
