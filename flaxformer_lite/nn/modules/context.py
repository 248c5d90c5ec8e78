"""Information about tokens that layers share.

It is computed once per stack and passed down with the residual stream.
"""

from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, Execution, InitConfig
from flaxformer_lite.nn.attentions.arguments import check_slots
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.rotary import Phase
from flaxformer_lite.nn.modules.cache import Cache, MixerCache, capacity_of
from flaxformer_lite.nn.modules.kv_cache import Left, Seen
from flaxformer_lite.nn.positions.encoding import Encoding, Table, Tables, list_hooks


class Context(flax.struct.PyTreeNode):
    """Masks, positions and biases of a call.

    A pytree, so that scan and remat accept it. None means "not given".

    Attributes:
      mask: a Mask of nn/functions/masks.py or a boolean array, True = may attend. A causal layer
        hides later columns as well, unless `structured`. With a cache: a Mask is over all slots,
        not over this call's tokens.
      cross_mask: the same, for decoder rows and encoder columns.
      beyond: a Mask of what `mask` lets rows see outside of a layer's window, too.
      position_ids_BT: int32, [1, T] or [B, T]; None counts from the first slot.
      starts_BT: bool, True for the first token of a document, and
      keep_BT: bool, False for padding: `mask` for recurrent layers (nn/modules/documents.py).
      bias: added to the logits of self-attention, [1, N, T, S], if it is the same in all layers and
        held whole.
      tables: the learned arrays of a bias that layers evaluate block by block.
      columns_BS: positions of the slots, for biases, if padding between tokens, or packing, makes
        them differ from the slot numbers.
      phase: rotation of queries and keys.
      index: the first row's slot in the cache, int32 scalar; None is the cache's length.
      encoder_output_BSD: input of cross-attention; None once the cache holds its keys and values.
      earlier: the keys and values that earlier layers have left to this one, by their window.
      inputs_BTLP: another vector of each token for each layer; in a layer, its own alone, L = 1.
      structured: whether `mask` already decides which later columns a causal layer shows, as a
        prefix LM's mask does.
      first: whether the cache is empty before these rows.
      prepared: whether the stack has already computed what its mixers share.
    """

    mask: Mask | jax.Array | None = None
    cross_mask: Mask | jax.Array | None = None
    beyond: Mask | None = None
    position_ids_BT: jax.Array | None = None
    starts_BT: jax.Array | None = None
    keep_BT: jax.Array | None = None
    bias: jax.Array | None = None
    tables: Tables | None = None
    columns_BS: jax.Array | None = None
    phase: Phase | None = None
    index: jax.Array | None = None
    encoder_output_BSD: jax.Array | None = None
    earlier: dict[int, Seen] | None = None
    inputs_BTLP: jax.Array | None = None
    structured: bool = flax.struct.field(pytree_node=False, default=False)
    first: bool = flax.struct.field(pytree_node=False, default=False)
    prepared: bool = flax.struct.field(pytree_node=False, default=False)


def with_options(
    context: Context | None,
    x_BTD: jax.Array,
    cache: Cache | MixerCache | None,
    **options: Mask | jax.Array | None,
) -> Context:
    """Returns the context, or a new one, with the options that are not None set.

    This serves modules that are called on their own.

    Raises:
      ConfigError: the context or the positions are something else.
      ValueError: the mask does not reach the last slot of the cache.
    """
    if not (context is None or isinstance(context, Context)):
        raise ConfigError(
            f"context: must be a Context, not {type(context).__name__}; if it is a mask, pass it as"
            " mask=."
        )
    given = {name: value for name, value in options.items() if value is not None}
    context = (context or Context()).replace(**given)
    if context.prepared:
        return context
    if cache is not None and context.index is None and not context.first:
        check_slots(context.mask, capacity_of(cache))
    if context.position_ids_BT is not None:
        context = context.replace(position_ids_BT=_positions(context.position_ids_BT, x_BTD))
    return context


class PositionTables(nn.Module):
    """Declares the tables that one hook of an encoding reads.

    The encoding itself is a pure function of them.

    Their sizes follow from the model's.
    """

    encoding: Encoding
    hook: str  # the hook that reads the tables: `embed` or `bias`
    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    initial: InitConfig = InitConfig()  # of tables that name no distribution of their own
    execution: Execution = Execution()

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        sizes = {
            name: getattr(self, name) for name in ("d_model", "num_heads", "head_dim", "max_length")
        }
        dtype = jnp.dtype(self.execution.param_dtype)
        first = next(iter(list_hooks(self.encoding)), "")
        params = {}
        for name, table in self.encoding.tables(**sizes).items():
            if self.hook == (table.hook or first):
                params[name] = self.param(name, self._initializer(table), table.shape, dtype)
        return params

    def _initializer(self, table: Table) -> Callable[..., jax.Array]:
        if table.init == "zeros":
            return nn.initializers.zeros
        if table.init == "ones":
            return nn.initializers.ones
        stddev = self.initial.stddev if table.init == "normal" else table.init
        return nn.initializers.normal(stddev)


class ContextLayer(nn.Module):
    """Base class of layers that read a context and may keep a cache; `forward` computes them."""

    def __call__(
        self,
        x_BTD: jax.Array,
        context: Context | None = None,
        cache: MixerCache | None = None,
        *,
        mask: Mask | jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> jax.Array | tuple[jax.Array, Left]:
        """Returns y [B, T, D], or (y, cache) if a cache was passed or keys are left to others.

        Args:
          x_BTD: the input.
          context: what the layers of a stack share.
          cache: this layer's.
          mask, position_ids: fields of the context, for a layer that is called on its own.
        """
        context = with_options(context, x_BTD, cache, mask=mask, position_ids_BT=position_ids)
        y_BTD, extended = self.forward(x_BTD, context, cache)
        if cache is None and extended is None:
            return y_BTD
        return y_BTD, extended

    def forward(self, x_BTD: jax.Array, context: Context, cache: Any) -> tuple[jax.Array, Left]:
        """Computes y, and the cache after it; None without one."""
        raise NotImplementedError


def call_layer(
    layer: nn.Module, x_BTD: jax.Array, context: Context, cache: Left
) -> tuple[jax.Array, Left]:
    """Returns what a mixer or a block computes, and the cache after it or None."""
    if cache is None:
        out = layer(x_BTD, context)
    else:
        out = layer(x_BTD, context, cache)
    if isinstance(out, tuple):
        return out
    return out, None


def _positions(ids: Any, x_BTD: jax.Array) -> jax.Array:
    if isinstance(ids, Mask | Context):
        keyword = "mask" if isinstance(ids, Mask) else "context"
        raise ConfigError(f"position_ids: is a {type(ids).__name__}; pass it as {keyword}=.")
    if not hasattr(ids, "ndim"):
        ids = np.asarray(ids)
    batch, length = x_BTD.shape[:2]
    if ids.shape not in ((1, length), (batch, length)) or not jnp.issubdtype(
        ids.dtype, jnp.integer
    ):
        raise ConfigError(
            f"position_ids: must be integer [1 or {batch}, {length}], one per token, not"
            f" {ids.dtype} {ids.shape}."
        )
    return ids
