"""Documents and padding, derived from a mask for layers that do not evaluate masks."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, Unpack

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Execution, InitConfig, plugin_name
from flaxformer_lite.config.parts import MixerConfig, Part, StackCall
from flaxformer_lite.nn.attentions.arguments import check_mask, check_slots
from flaxformer_lite.nn.attentions.mask_structure import Structure, structure_of
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.context import Context


class DocumentReader(MixerConfig):
    """Base class of the records of mixers that read documents and padding off the mask."""

    def prepare(
        self, context: Context, x_BTD: jax.Array, execution: Execution, **options: Unpack[StackCall]
    ) -> Context:
        """Reads documents and padding off the mask, once for all layers."""
        return with_documents(context, x_BTD, causal=options["causal"])


@dataclass(frozen=True, kw_only=True)
class StateReader(DocumentReader):
    """Base class of the records of mixers that read from left to right with a state.

    Attributes:
      initial: initialization of the projections; in a model, the model's.
    """

    initial: InitConfig = field(default_factory=InitConfig, metadata={"internal": True})

    def for_model(self, standard: Part) -> Self:
        window = getattr(standard, "window", 0)
        if window:
            raise ConfigError(
                f"windows, {window} in a layer with mixer.name={plugin_name(self)!r}: a recurrent"
                " layer reads all that comes before; give it window=0."
            )
        return replace(self, initial=getattr(standard, "initial", self.initial))


def with_documents(context: Context, x_BTD: jax.Array, *, causal: bool) -> Context:
    """Sets `starts_BT` and `keep_BT` from the mask.

    Each stays None where nothing starts or nothing is padding.

    Raises:
      ConfigError: a reader from left to right (`causal`), or of both ways, cannot follow the mask:
        it is a window or a prefix, or an array.
    """
    batch, length = x_BTD.shape[:2]
    structure = _structure_of_documents(context, causal=causal)
    if structure is None:
        raise ConfigError(
            "mask, prefix_mask, windows: a recurrent layer reads token by token, and a convolution"
            " neighbours, so they follow padding and segments, and causal in a decoder, but no"
            " prefix, window or array; leave those out, or use attention."
        )
    if context.index is None:
        check_mask(context.mask, batch, length, length)
    else:
        check_slots(context.mask, length)

    def of_call(x_BS: jax.Array) -> jax.Array:
        x_BS = jnp.broadcast_to(x_BS, (batch, x_BS.shape[1]))
        if context.index is None or context.first:
            return x_BS[:, :length]
        return jax.lax.dynamic_slice_in_dim(x_BS, context.index, length, axis=1)

    ids_BS = structure.q_segments_BT
    keep_BT = None
    if structure.keep_BS is not None:
        keep_BT = of_call(structure.keep_BS)
    if ids_BS is None:
        return context.replace(keep_BT=keep_BT)
    real_BT = of_call(ids_BS) != 0
    # Over all slots, not the call's tokens: the one before its first is from an earlier call.
    before_BS = jnp.pad(ids_BS, ((0, 0), (1, 0)))[:, :-1]
    starts_BT = of_call(ids_BS != before_BS) & real_BT
    if keep_BT is not None:
        real_BT = keep_BT & real_BT
    return context.replace(starts_BT=starts_BT, keep_BT=real_BT)


def refuse_split_sequences(execution: Execution, reader: str) -> None:
    """Refuses a mesh that splits sequences, for a layer that reads them whole.

    Args:
      execution: where the layer runs.
      reader: what reads the sequence and how, for the error.
    """
    count = sharding_of(execution).num_shards("T").count
    if count > 1:
        raise ConfigError(
            f"mesh.context={count}: splits the sequence, which {reader}; set mesh.context=1 and a"
            " larger mesh.data."
        )


class Documents(NamedTuple):
    """The documents that the tokens of a batch belong to.

    Attributes:
      ids_BT: int32, the document of each token; 0 is padding behind packed documents.
      kept_BT: bool, False for padding.
    """

    ids_BT: jax.Array
    kept_BT: jax.Array


def documents_of(
    context: Context, x_BTD: jax.Array, *, mixer: str, packs: bool = True
) -> Documents:
    """Returns the document of each token; without segments a row is one document.

    Args:
      context: has the mask.
      x_BTD: the input of the layer.
      mixer: its name, for errors.
      packs: whether the layer tells the documents of a row apart.

    Raises:
      ConfigError: the mask is not one of padding and segments, or has segments though `packs` is
        false.
    """
    batch, length = x_BTD.shape[:2]
    check_mask(context.mask, batch, length, length)
    structure = _structure_of_documents(context, causal=False)
    if structure is None:
        raise ConfigError(
            f"mask, prefix_mask: mixer.name={mixer!r} follows padding and segments, but no causal"
            " mask, window, prefix or array; leave those out, or use attention."
        )
    if structure.q_segments_BT is not None and not packs:
        raise ConfigError(
            f"segment_ids, packing: mixer.name={mixer!r} depends on where a row of {length} tokens"
            " begins and ends, so it packs no documents; give each its own row."
        )
    # Not a constant, from which XLA would compute sums over all tokens while it compiles.
    ids_BT = jax.lax.optimization_barrier(jnp.ones((1, length), jnp.int32))
    if structure.q_segments_BT is not None:
        ids_BT = structure.q_segments_BT.astype(jnp.int32)
    kept_BT = ids_BT != 0
    if structure.keep_BS is not None:
        kept_BT = kept_BT & structure.keep_BS
    shape = (batch, length)
    return Documents(jnp.broadcast_to(ids_BT, shape), jnp.broadcast_to(kept_BT, shape))


def _structure_of_documents(context: Context, *, causal: bool) -> Structure | None:
    """Returns the structure of a mask of padding and segments, also a causal one; else None."""
    if context.mask is not None and not isinstance(context.mask, Mask):
        return None
    structure = structure_of(context.mask)
    if structure is None or structure.left is not None or structure.k_segments_BS is not None:
        return None
    if structure.right is None or (causal and structure.right == 0):
        return structure
    return None
