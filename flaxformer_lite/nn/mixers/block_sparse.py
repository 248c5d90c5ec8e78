"""Attention of blocks of tokens to their neighbors and to both ends of the row (BigBird)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, rules
from flaxformer_lite.config.parts import StackCall
from flaxformer_lite.nn.functions import block_local, kernels
from flaxformer_lite.nn.mixers.attention import Attention, AttentionVariantConfig
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.documents import documents_of, refuse_split_sequences
from flaxformer_lite.nn.modules.kv_cache import Left
from flaxformer_lite.nn.positions.encoding import list_hooks


@dataclass(frozen=True, kw_only=True)
class BlockSparseConfig(AttentionVariantConfig):
    """The record of block-sparse attention.

    Rows of at most `full_length` tokens, and decoders, have plain attention.

    Attributes:
      block: tokens in a block; a block sees itself, its two neighbors, and the first and last block
        of the row, which see everything.
      random_blocks: R. Blocks in between see R more; as in transformers outside of training, each
        of them is the first block again, so it weighs 1 + R times as much.

    Reference: Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences" (arXiv:2007.14062),
    section 2 and appendix D.
    """

    low_precision: ClassVar[tuple[str, ...]] = ("matmul", "quantize", "cache")
    whole_rows: ClassVar[bool] = True

    block: rules.Size = 64
    random_blocks: rules.Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention.window:
            raise ConfigError(
                f"windows, {self.attention.window} in a layer with mixer.name='block_sparse': its"
                " mixer.block says how far a token sees; give it window=0."
            )
        if "bias" in list_hooks(self.position):
            raise ConfigError(
                f"position={type(self.position).__name__}: adds to the logits of all pairs of"
                " tokens, and mixer.name='block_sparse' computes few of them; set"
                " position=Learned() or Rope()."
            )

    @property
    def full_length(self) -> int:
        """The longest row that has plain attention."""
        return (5 + 2 * self.random_blocks) * self.block

    def is_plain(self, length: int) -> bool:
        """Returns whether rows of this length have plain attention."""
        return length <= self.full_length

    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> nn.Module:
        return BlockSparse(self.attention, execution, causal, record=self, name=name)

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Computes phases and, for short rows, what plain attention shares."""
        if self.is_plain(x_BTD.shape[1]):
            return super().prepare(context, x_BTD, execution, **options)
        return self.attention.with_phase(context, x_BTD)


class BlockSparse(Attention):
    """Attends as BlockSparseConfig says; time and memory grow with the length, not its square.

    Rows are padded to whole blocks, and the last of them is the last block, also where it holds
    padding: a token depends on the length of its row.
    """

    record: BlockSparseConfig = BlockSparseConfig()

    @nn.compact
    def forward(
        self, x_BTD: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, Left]:
        record = self.record
        length = x_BTD.shape[1]
        if record.is_plain(length):
            return super().forward(x_BTD, context, cache)
        if self.causal:
            raise ConfigError(
                f"{length} tokens: mixer.name='block_sparse' looks both ways beyond"
                f" {record.full_length}; shorten the rows, or use plain attention in a causal"
                " model (mixer=None, in files attention_type=original_full)."
            )
        refuse_split_sequences(self.execution, "mixer.name='block_sparse' reads in blocks")
        documents = documents_of(context, x_BTD, mixer="block_sparse", packs=False)
        heads = self.project_heads(x_BTD, x_BTD, context, None)
        out_BTNH = self.attend_in_blocks(
            *heads,
            documents.kept_BT,
            self.scale_of(heads[0]),
            self.weight_dropout(),
        )
        return self.project_out(out_BTNH, x_BTD), cache

    @nn.nowrap
    def attend_in_blocks(
        self,
        q_BTNH: jax.Array,
        k_BTKH: jax.Array,
        v_BTKH: jax.Array,
        kept_BT: jax.Array,
        scale: float,
        dropout: block_local.WeightDropout | None,
    ) -> jax.Array:
        """Computes `block_sparse` as the record says."""
        return block_sparse(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            kept_BT,
            block=self.record.block,
            random_blocks=self.record.random_blocks,
            scale=scale,
            softcap=self.cfg.softcap,
            dropout=dropout,
        )


def block_sparse(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    kept_BT: jax.Array,
    /,
    *,
    block: int,
    random_blocks: int,
    scale: float,
    softcap: float = 0.0,
    dropout: block_local.WeightDropout | None = None,
) -> jax.Array:
    """Computes block-sparse attention of rows of at least three blocks, [B, T, N, H].

    Rows of padding are zero, as in transformers.

    Args:
      q_BTNH: queries.
      k_BTKH, v_BTKH: keys and values; N is a multiple of K.
      kept_BT: bool, False for padding.
      block: tokens in a block.
      random_blocks: how often blocks in between see the first block again.
      scale: factor on the dot products.
      softcap: turns logits into cap * tanh(logits / cap); 0 for none.
      dropout: None drops nothing.
    """
    length = q_BTNH.shape[1]
    behind = -length % block

    def padded(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, behind), *((0, 0),) * (x.ndim - 2)))

    def ends(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[:, :block], x[:, -block:]], axis=1)

    q_BTNH, k_BTKH, v_BTKH, kept_BT = map(padded, (q_BTNH, k_BTKH, v_BTKH, kept_BT))
    # To see a key r more times is to add log(1 + r) to its logit.
    again_S = jnp.where(jnp.arange(2 * block) < block, math.log1p(random_blocks), 0.0)
    kept_B1S = ends(kept_BT)[:, None]

    def logits(rows_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        shape = (*rows_BT.shape, 2 * block)
        return again_S[None, None, None], jnp.broadcast_to(kept_B1S, shape)

    ids_BT = kept_BT.astype(jnp.int32)
    column_1T = jnp.arange(kept_BT.shape[1])[None]
    # The first and the last block are among the shared keys: as neighbors they would count twice.
    inner_1T = (column_1T >= block) & (column_1T < kept_BT.shape[1] - block)
    out_BTNH = block_local.attend_blocks(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        ids_BT,
        jnp.where(inner_1T, ids_BT, 0),
        block=block,
        scale=scale,
        softcap=softcap,
        shared=block_local.Shared(ends(k_BTKH), ends(v_BTKH), ids_BT, logits),
        dropout=dropout,
    )
    # The rows of both ends see everything; what was computed for them above is dropped.
    scores_BNTS = kernels.dot_products(ends(q_BTNH), k_BTKH) * scale
    if softcap:
        scores_BNTS = softcap * jnp.tanh(scores_BNTS / softcap)
    weights_BNTS = kernels.softmax(scores_BNTS, kept_BT[:, None])
    if dropout is not None:
        weights_BNTS = block_local.drop(weights_BNTS, dropout, block_local.NO_PART)
    ends_BTNH = kernels.pool(weights_BNTS, v_BTKH)
    inner_BTNH = out_BTNH[:, block:-block]
    joined = [ends_BTNH[:, :block], inner_BTNH, ends_BTNH[:, block:]]
    out_BTNH = jnp.where(kept_BT[..., None, None], jnp.concatenate(joined, axis=1), 0)
    return out_BTNH[:, :length]
