"""A stack of blocks: a Python loop or a scan, with rematerialisation where asked."""

import flax.linen as nn
import jax

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.modules.attention import lower
from flaxformer_lite.modules.block import Block
from flaxformer_lite.modules.context import Context
from flaxformer_lite.modules.dropout import Dropout
from flaxformer_lite.modules.norms import Norm
from flaxformer_lite.modules.position_tables import PositionTables, hook
from flaxformer_lite.modules.sharding import sharding_of

POLICIES = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


class Group(nn.Module):
    """The blocks of one period of `cfg.windows`: what scan repeats."""

    cfg: ModelConfig
    causal: bool
    cross: bool

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context, caches=None):
        kept = []
        for i, window in enumerate(self.cfg.windows):
            block = Block(self.cfg, window, self.causal, self.cross, name=f"block_{i}")
            x_BTD, cache = block(x_BTD, context, caches and caches[i])
            kept.append(cache)
        return x_BTD, caches and kept


class Stack(nn.Module):
    """num_layers blocks and the final norm.

    Weights are `layer_0`, `layer_1`, ... or, with `cfg.scan`, one `layers/block_<i>` with a leading Y axis for each i of the
    period of `cfg.windows`: the same numbers in another layout (modules/layout.py).
    """

    cfg: ModelConfig
    num_layers: int
    causal: bool = False
    cross: bool = False

    @nn.compact
    def __call__(self, x_BTD: jax.Array, positions_BT: jax.Array, context: Context, caches=None):
        cfg = self.cfg
        context = lower(cfg, self._with_positions(context, positions_BT), x_BTD, not self.causal)
        run = self._scan if cfg.scan and not cfg.share_layers else self._loop
        x_BTD, caches = run(x_BTD, context, caches)
        if "final" in cfg.norm_at:
            x_BTD = Norm(cfg, name="final_norm")(x_BTD)
        return Dropout(cfg, "final")(x_BTD), caches

    def _with_positions(self, context: Context, positions_BT: jax.Array) -> Context:
        encoding = self.cfg.position
        if hook(encoding) == "phase":
            return context.replace(phase=encoding.phase(positions_BT, self.cfg.head_width))
        if hook(encoding) == "bias" and not encoding.per_layer:
            return context.replace(tables=PositionTables(self.cfg, name="position")())
        return context

    def _loop(self, x_BTD: jax.Array, context: Context, caches):
        cfg, kept, blocks = self.cfg, [], {}
        make = Block if cfg.remat == "none" else nn.remat(Block, policy=POLICIES[cfg.remat])
        if sharding_of(cfg).tuned:
            # Layers of one look are traced once (functions/cpu_tuning.py); to all but a trainer each layer's inside stays its
            # own, for interceptors and captured intermediates.
            make = nn.jit(make)
        for i in range(self.num_layers):
            which = cfg.share_layers[i] if cfg.share_layers else i
            if which not in blocks:
                window = cfg.windows[i % len(cfg.windows)]
                blocks[which] = make(cfg, window, self.causal, self.cross, name=f"layer_{which}")
            x_BTD, cache = blocks[which](x_BTD, context, caches and caches[i])
            kept.append(cache)
        return x_BTD, caches and kept

    def _scan(self, x_BTD: jax.Array, context: Context, caches):
        cfg = self.cfg
        group = Group if cfg.remat == "none" else nn.remat(Group, policy=POLICIES[cfg.remat], prevent_cse=False)
        layers = nn.scan(
            group,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, 0),
            length=self.num_layers // len(cfg.windows),
        )
        return layers(cfg, self.causal, self.cross, name="layers")(x_BTD, context, caches)
