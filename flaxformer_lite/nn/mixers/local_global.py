"""Attention to nearby tokens and to sums of tokens everywhere, in encoders (LongT5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, NormConfig, rules
from flaxformer_lite.config.parts import StackCall
from flaxformer_lite.nn.functions import block_local
from flaxformer_lite.nn.functions.embedding import positions_in_segments
from flaxformer_lite.nn.mixers.attention import Attention, AttentionVariantConfig
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context, PositionTables
from flaxformer_lite.nn.modules.documents import Documents, documents_of, refuse_split_sequences
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import Tables, list_hooks

GLOBAL = "global_position"  # the tables of positions of the sums, and their prefix in a Context


@dataclass(frozen=True, kw_only=True)
class LocalGlobalConfig(AttentionVariantConfig):
    """The record of attention to `radius` tokens on each side and to transient global tokens.

    In a decoder it is plain attention.

    Attributes:
      radius: how many tokens before and after itself a token sees.
      global_block: the number of neighboring tokens that are summed to a global token, which all
        tokens of the document see; 0 for none.
      norm_eps: added to the mean square of a sum, which is normalized.

    Reference: Guo et al. 2022, "LongT5: Efficient Text-To-Text Transformer for Long Sequences"
    (arXiv:2112.07916), section 3.
    """

    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize", "cache")

    radius: rules.Size = 127
    global_block: rules.Count = 16
    norm_eps: rules.NotNegative = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        encoding = self.attention.position
        if self.attention.window:
            raise ConfigError(
                f"windows, {self.attention.window} in a layer with mixer.name='local_global': its"
                " mixer.radius says how far a token sees; give it window=0."
            )
        if "bias" in list_hooks(encoding) and not encoding.by_distance:
            raise ConfigError(
                f"position={type(encoding).__name__}: mixer.name='local_global' takes a bias that"
                " depends on the distance alone; set position=T5Buckets() or Alibi()."
            )
        if "phase" in list_hooks(encoding) and self.global_block:
            raise ConfigError(
                f"position={type(encoding).__name__}: turns keys by their position, and a sum of"
                " tokens has none; set mixer.global_block=0, or another position."
            )

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        if causal:
            return self.attention.module(execution, causal=True, name=name)
        return LocalGlobal(self.attention, execution, record=self, name=name)

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Declares the bias tables that all layers of a stack share."""
        if options["causal"]:
            return super().prepare(context, x_BTD, execution, **options)
        tables = options["tables"]
        encoding = self.position
        sizes = self.table_sizes(x_BTD.shape[-1])
        context = self.attention.with_phase(context, x_BTD)
        if "bias" not in list_hooks(encoding) or encoding.per_layer:
            return context
        declared = dict(tables(encoding, **sizes))
        if self.global_block:
            more = tables(encoding, role=GLOBAL, **sizes)
            declared |= {f"{GLOBAL}/{name}": table for name, table in more.items()}
        return context.replace(tables=declared)


class Sums(NamedTuple):
    """The assignment of tokens to sums of neighboring tokens, by the number of a sum in its row.

    Attributes:
      own_BT: int32, the sum to which a token is added; -1 for none.
      first_BT, stop_BT: int32; a token sees sums first .. stop - 1, which belong to its document.
    """

    own_BT: jax.Array
    first_BT: jax.Array
    stop_BT: jax.Array


# a function of sums: their bias [B or 1, N or 1, T or 1, S], and which ones tokens see [B, T, S]
SumLogits = Callable[[Sums], tuple[jax.Array, jax.Array]]


def sums_of(documents: Documents, size: int) -> Sums:
    """Assigns tokens to sums of `size` neighbors.

    The last sum of a document also has the tokens that remain at its end. A document with fewer
    than `size` tokens has no sum. Padding is counted as a token, but not added.

        >>> ids = jnp.array([[7, 7, 7, 7, 7, 8, 8, 8, 0]])
        >>> sums_of(Documents(ids, ids != 0), 2).own_BT.tolist()
        [[0, 0, 1, 1, 1, 2, 2, 2, -1]]

    Args:
      documents: the document of each token.
      size: tokens in a sum, at least one.
    """
    ids_BT, kept_BT = documents
    length = ids_BT.shape[1]
    position_BT = positions_in_segments(ids_BT)
    ends_BT = (kept_BT & (position_BT % size == size - 1)).astype(jnp.int32)
    after_BT = jnp.cumsum(ends_BT, axis=1)  # full sums up to each token
    last_BT = jnp.diff(ids_BT, axis=1, append=ids_BT[:, -1:] + 1) != 0
    before_BT = jnp.where(position_BT == 0, after_BT - ends_BT, 0)
    first_BT = jax.lax.cummax(before_BT, axis=1)
    stop_BT = jax.lax.cummin(jnp.where(last_BT, after_BT, length), axis=1, reverse=True)
    own_BT = jnp.minimum(first_BT + position_BT // size, stop_BT - 1)
    own_BT = jnp.where(kept_BT & (stop_BT > first_BT), own_BT, -1)
    return Sums(own_BT, first_BT, jnp.where(kept_BT, stop_BT, first_BT))


class LocalGlobal(Attention):
    """Attends to near tokens and, unless their block is 0, to normed sums of tokens.

    The sums are keys and values, projected like tokens; they are made anew in each layer and are no
    queries. Scores take memory that does not grow with the length (nn/functions/block_local.py).
    """

    record: LocalGlobalConfig = LocalGlobalConfig()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, None]:
        if cache is not None:
            raise ConfigError("cache: an encoder's layer looks both ways; leave it out.")
        refuse_split_sequences(self.execution, "mixer.name='local_global' reads in blocks")
        documents = documents_of(context, x_BTD, mixer="local_global")
        length = x_BTD.shape[1]
        keys_BSD = x_BTD
        sums = None
        if self.record.global_block:
            sums = self.sums_of(documents)
            cfg = NormConfig(kind="rms", eps=self.record.norm_eps)
            norm = Norm(cfg, self.execution, name="global_norm")
            keys_BSD = jnp.concatenate([x_BTD, norm(self.add_up(x_BTD, sums))], axis=1)
        q_BTNH, k_BSKH, v_BSKH = self.project_heads(x_BTD, keys_BSD, context, None)
        logits = None
        if self.record.global_block:
            logits = self._logits(self._tables(GLOBAL, context, x_BTD), k_BSKH.shape[1] - length)
        tables = self._tables("position", context, x_BTD)
        out_BTNH = self.attend_in_blocks(q_BTNH, k_BSKH, v_BSKH, documents, tables, logits, sums)
        return self.project_out(out_BTNH, x_BTD), None

    @nn.nowrap
    def sums_of(self, documents: Documents) -> Sums:
        """Assigns tokens to sums."""
        return sums_of(documents, self.record.global_block)

    @nn.nowrap
    def add_up(self, x_BTD: jax.Array, sums: Sums) -> jax.Array:
        """Returns the sums [B, S, D], at least one, which a short row does not see."""
        batch, length, width = x_BTD.shape
        count = max(1, length // self.record.global_block)
        target_BT = jnp.where(sums.own_BT < 0, count, sums.own_BT)
        rows_B1 = jnp.arange(batch)[:, None]
        # Added in float32, so that a sum is rounded only once; tokens of no sum have a number
        # behind the last, which the scatter drops.
        zeros_BSD = jnp.zeros((batch, count, width), jnp.float32)
        sums_BSD = zeros_BSD.at[rows_B1, target_BT].add(x_BTD.astype(jnp.float32), mode="drop")
        return sums_BSD.astype(x_BTD.dtype)

    @nn.nowrap
    def attend_in_blocks(
        self,
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        documents: Documents,
        tables: Tables | None,
        logits: SumLogits | None,
        sums: Sums | None,
    ) -> jax.Array:
        """Attends block by block to near tokens, and to the sums.

        Args:
          k_BSKH, v_BSKH: keys and values of the tokens, then of the sums.
          tables: of the position encoding, for tokens.
          logits: the bias of sums, and which ones tokens see; None without sums.
          q_BTNH, documents, sums: queries, and the documents and sums of tokens.
        """
        dropout = self.weight_dropout()
        length = q_BTNH.shape[1]
        ids_BT = jnp.where(documents.kept_BT, documents.ids_BT, 0)
        shared = None
        if logits is not None:
            shared = block_local.Shared(k_BSKH[:, length:], v_BSKH[:, length:], sums, logits)
        # The smallest block whose neighbors on both sides reach as far as the radius.
        block = self.record.radius + 1
        # The middle of three blocks, as only distances count.
        row_T = jnp.arange(block, 2 * block, dtype=jnp.int32)
        return block_local.attend_blocks(
            q_BTNH,
            k_BSKH[:, :length],
            v_BSKH[:, :length],
            ids_BT,
            ids_BT,
            block=block,
            block_bias=self.token_bias(tables, row_T, jnp.arange(3 * block, dtype=jnp.int32)),
            radius=self.record.radius,
            scale=self.scale_of(q_BTNH),
            softcap=self.cfg.softcap,
            shared=shared,
            dropout=dropout,
        )

    def _tables(self, role: str, context: Context, x_BTD: jax.Array) -> Tables | None:
        """Returns the position tables for tokens or for sums, by `role`; None without a bias."""
        encoding = self.cfg.position
        if "bias" not in list_hooks(encoding):
            return None
        if encoding.per_layer or context.tables is None:
            sizes = self.cfg.table_sizes(x_BTD.shape[-1])
            return PositionTables(encoding, "bias", **sizes, execution=self.execution, name=role)()
        prefix = f"{GLOBAL}/"
        if role == GLOBAL:
            mine = {k: table for k, table in context.tables.items() if k.startswith(prefix)}
            return {name.removeprefix(prefix): table for name, table in mine.items()}
        return {k: table for k, table in context.tables.items() if not k.startswith(prefix)}

    @nn.nowrap
    def token_bias(
        self, tables: Tables | None, rows_T: jax.Array, columns_S: jax.Array
    ) -> jax.Array | None:
        """Returns the bias between tokens at these positions, [N, T, S]; None without a bias."""
        if tables is None:
            return None
        heads = jnp.zeros((1, 1, self.cfg.num_heads, 1))  # only their number is read
        bias = self.cfg.position.bias(
            tables, heads, rows_T[None], columns_S[None], bidirectional=True
        )
        assert bias is not None, "the encoding has the hook"
        return bias[0]

    def _logits(self, tables: Tables | None, count: int) -> SumLogits:
        """Returns a function of `Sums` that returns the bias of sums, and which ones tokens see."""
        heads = jnp.zeros((1, 1, self.cfg.num_heads, 1))
        columns_1S = jnp.arange(count, dtype=jnp.int32)[None]

        def logits(rows: Sums) -> tuple[jax.Array, jax.Array]:
            columns_11S = columns_1S[None]
            from_BTS = rows.first_BT[..., None] <= columns_11S
            seen_BTS = from_BTS & (columns_11S < rows.stop_BT[..., None])
            if tables is None:
                return jnp.zeros((1, 1, 1, count)), seen_BTS
            bias_BNTS = self.cfg.position.bias(
                tables, heads, rows.own_BT, columns_1S, bidirectional=True
            )
            assert bias_BNTS is not None, "the encoding has the hook"
            return bias_BNTS, seen_BTS

        return logits
