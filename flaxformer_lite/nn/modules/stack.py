"""A stack of blocks, run by a Python loop or a scan, with optional rematerialization."""

from collections.abc import Callable
from typing import Any, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import Execution, StackConfig, choices
from flaxformer_lite.config.parts import MixerConfig, TableSizes
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.device_ops import ATTENTION
from flaxformer_lite.nn.functions.masks import Mask
from flaxformer_lite.nn.functions.sharding import sharding_of
from flaxformer_lite.nn.modules.block import Block
from flaxformer_lite.nn.modules.cache import Cache, MixerCache, check_room, check_stack, length_of
from flaxformer_lite.nn.modules.context import Context, PositionTables, call_layer, with_options
from flaxformer_lite.nn.modules.dropout import Dropout
from flaxformer_lite.nn.modules.kv_cache import Left, Seen
from flaxformer_lite.nn.modules.norms import Norm
from flaxformer_lite.nn.positions.encoding import Encoding, list_hooks

POLICIES: dict[str, Callable[..., bool] | None] = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": None,
}
for _remat in choices.REMATS:
    if ATTENTION in _remat:
        POLICIES[_remat] = jax.checkpoint_policies.save_only_these_names(*_remat.split("+"))


class Group(nn.Module):
    """The blocks of one period of the pattern, which scan repeats."""

    cfg: StackConfig
    execution: Execution
    causal: bool

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        contexts: tuple[Context, ...],
        cache: Cache | None,
        inputs_BTLP: jax.Array | None,
    ) -> tuple[jax.Array, Cache | None]:
        kept = []
        earlier: dict[int, Seen] = {}
        for i, (layer, context) in enumerate(zip(self.cfg.pattern, contexts, strict=True)):
            block = Block(layer, self.execution, self.causal, name=f"block_{i}")
            own = _of_layer(context, earlier, inputs_BTLP, i)
            x_BTD, left = call_layer(block, x_BTD, own, _entry(cache, i))
            kept.append(_keep(left, earlier))
        if cache is None:
            return x_BTD, None
        return x_BTD, kept


class Stack(nn.Module):
    """Layers in a repeated pattern, and the final norm.

    Weights are named `layer_0`, `layer_1`, ... or, with `execution.scan`, `layers/block_<i>` with a
    leading Y axis for each kind i of the pattern: the same numbers in another layout
    (nn/modules/layout.py).
    """

    cfg: StackConfig
    execution: Execution = Execution()
    causal: bool = False  # whether each token sees only itself and earlier ones
    # whether positions are already added to the embeddings, which a stack on its own does itself
    embedded: bool = False

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        position_ids_BT: jax.Array | None = None,
        context: Context | None = None,
        cache: Cache | None = None,
        *,
        mask: Mask | jax.Array | None = None,
    ) -> Any:
        """Returns the last hidden state [B, T, D], or (state, cache) if a cache was passed.

        See `init_stack_cache`.
        """
        cfg = self.cfg
        context = with_options(context, x_BTD, cache, mask=mask, position_ids_BT=position_ids_BT)
        if cache is not None:
            check_stack(cfg, self.execution, cache, x_BTD.shape[0])
            index = context.index
            if index is None:
                index = length_of(cache)
            context = context.replace(index=index)
            used: int | jax.Array = index
            if context.first:
                used = 0
            x_BTD = check_room(x_BTD, cache, used)
        context = self._with_structure(self._with_positions(context, x_BTD), x_BTD)
        if not self.embedded:
            x_BTD = self._embedded(x_BTD, context)
        contexts = self._contexts(context, x_BTD)
        if cfg.scans(self.execution):
            x_BTD, kept = self._scan(x_BTD, contexts, cache)
        else:
            x_BTD, kept = self._loop(x_BTD, contexts, cache)
        if cfg.final_norm is not None:
            x_BTD = Norm(cfg.final_norm, self.execution, name="final_norm")(x_BTD)
        x_BTD = Dropout("final", self.execution)(x_BTD)
        if cache is None:
            return x_BTD
        return x_BTD, kept

    def _with_positions(self, context: Context, x_BTD: jax.Array) -> Context:
        if context.position_ids_BT is not None:
            return context
        positions_1T = jnp.arange(x_BTD.shape[1], dtype=jnp.int32)[None]
        if context.index is not None:
            positions_1T = context.index + positions_1T
        return context.replace(position_ids_BT=positions_1T)

    def _with_structure(self, context: Context, x_BTD: jax.Array) -> Context:
        """Makes the mask of a causal stack causal, once for all layers.

        An array is left as it is, as it has the rows and columns of this call and not slots; each
        layer makes it causal.
        """
        is_array = context.mask is not None and not isinstance(context.mask, masks.Mask)
        if not self.causal or context.structured or is_array:
            return context
        rows_T = jnp.arange(x_BTD.shape[1], dtype=jnp.int32)
        return context.replace(
            mask=masks.both(masks.causal(), context.mask, rows_T, rows_T), structured=True
        )

    def _embedded(self, x_BTD: jax.Array, context: Context) -> jax.Array:
        mixer = self.cfg.pattern[0].mixer
        encoding = getattr(mixer, "position", None)
        if mixer is None or encoding is None or "embed" not in list_hooks(encoding):
            return x_BTD
        sizes = mixer.table_sizes(x_BTD.shape[-1])
        tables = PositionTables(
            encoding, "embed", **sizes, execution=self.execution, name="embed_position"
        )()
        return encoding.embed(tables, x_BTD, context.position_ids_BT)

    def _contexts(self, context: Context, x_BTD: jax.Array) -> tuple[Context, ...]:
        """Prepares the context for each kind of layer, once for all layers of that kind."""
        names: dict[Encoding, str] = {}

        def tables(
            encoding: Encoding, role: str = "", **sizes: Unpack[TableSizes]
        ) -> dict[str, jax.Array]:
            # The first encoding keeps the bare name, so that parameters are named alike in stacks
            # of one kind of layer and of several.
            new_name = "position"
            if names:
                new_name = f"position_{len(names)}"
            name = role or names.setdefault(encoding, new_name)
            if name not in declared:
                declared[name] = PositionTables(
                    encoding, "bias", **sizes, execution=self.execution, name=name
                )()
            return declared[name]

        declared: dict[str, dict[str, jax.Array]] = {}
        made: dict[tuple[MixerConfig | None, ...], Context] = {}
        for layer in self.cfg.pattern:
            mixers = (layer.extra_branch, layer.mixer)
            # Layers of equal mixers share one context, so that their masks and tables are computed
            # once.
            if mixers in made:
                continue
            prepared = context
            for mixer in mixers:
                if mixer is not None:
                    prepared = mixer.prepare(
                        prepared, x_BTD, self.execution, causal=self.causal, tables=tables
                    )
            made[mixers] = prepared.replace(prepared=True)
        return tuple(made[layer.extra_branch, layer.mixer] for layer in self.cfg.pattern)

    def _loop(
        self, x_BTD: jax.Array, contexts: tuple[Context, ...], cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:
        cfg = self.cfg
        run = self.execution
        kept = []
        earlier: dict[int, Seen] = {}
        blocks = {}
        make = Block
        if run.remat != "none":
            make = nn.remat(Block, policy=POLICIES[run.remat])
        if sharding_of(run).traces_layers_once:
            # Elsewhere each layer is traced by itself, for interceptors and captured intermediates.
            make = nn.jit(make)
        for i in range(cfg.num_layers):
            which = i
            if cfg.share:
                which = cfg.share[i]
            if which not in blocks:
                blocks[which] = make(
                    cfg.pattern[cfg.kind(i)], run, self.causal, name=f"layer_{which}"
                )
            context = contexts[cfg.kind(i)]
            own = _of_layer(context, earlier, context.inputs_BTLP, i)
            x_BTD, left = call_layer(blocks[which], x_BTD, own, _entry(cache, i))
            kept.append(_keep(left, earlier))
        if cache is None:
            return x_BTD, None
        return x_BTD, kept

    def _scan(
        self, x_BTD: jax.Array, contexts: tuple[Context, ...], cache: Cache | None
    ) -> tuple[jax.Array, Cache | None]:
        remat = self.execution.remat
        group = Group
        if remat != "none":
            # The loop of the scan already keeps XLA from merging the recomputation with the forward
            # pass.
            group = nn.remat(Group, policy=POLICIES[remat], prevent_cse=False)
        layers = nn.scan(
            group,
            # all that layers sow gets the leading axis of their weights, too
            variable_axes={True: 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, 0, 0),
            length=self.cfg.num_layers // len(self.cfg.pattern),
        )
        inputs_YBTLP = contexts[0].inputs_BTLP
        if inputs_YBTLP is not None:
            batch, length, count, width = inputs_YBTLP.shape
            period = len(self.cfg.pattern)
            periods = (batch, length, count // period, period, width)
            inputs_YBTLP = jnp.moveaxis(inputs_YBTLP.reshape(periods), 2, 0)
            contexts = tuple(context.replace(inputs_BTLP=None) for context in contexts)
        run_layers = layers(self.cfg, self.execution, self.causal, name="layers")
        return run_layers(x_BTD, contexts, cache, inputs_YBTLP)


def _entry(cache: Cache | None, layer: int) -> MixerCache | None:
    if cache is None:
        return None
    return cache[layer]


def _of_layer(
    context: Context, earlier: dict[int, Seen], inputs_BTLP: jax.Array | None, layer: int
) -> Context:
    """Returns the context of one layer, with what earlier ones left and with its own input."""
    if earlier:
        context = context.replace(earlier=dict(earlier))
    if inputs_BTLP is not None:
        context = context.replace(inputs_BTLP=inputs_BTLP[:, :, layer : layer + 1])
    return context


def _keep(left: Left, earlier: dict[int, Seen]) -> MixerCache | None:
    """Returns the cache after a layer; keys and values that it leaves to later ones are added."""
    if not isinstance(left, dict):
        return left
    ((window, seen),) = left.items()
    earlier[window] = seen._replace(cache=None)
    return seen.cache
