"""Optimizers and schedules from OptimizerConfig.

The order is always clip, direction, decay, learning rate.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.sharding.parameters import path_of
from flaxformer_lite.training import per_param_lr, spikes
from flaxformer_lite.training.average import with_average
from flaxformer_lite.types import Tree

# not by rank: scanned biases are matrices too
DECAYED = re.compile(r"(^|/)(kernel|embedding|token_types|task_types|lora_[ab])$")
ROUTER_BIAS = re.compile(r"(^|/)choice_bias$")


def schedule(
    cfg: OptimizerConfig, steps: int, updates: int = 1
) -> Callable[[jax.Array], jax.Array]:
    """Builds the learning rate schedule: linear warmup to the peak, then the named shape.

    Steps count from 0. With w warmup steps and n steps in total, the first step has peak / w and
    the last has final_fraction * peak for cosine, linear and wsd. rsqrt is peak * sqrt(w / step);
    wsd holds the peak and then falls linearly over decay_steps.

    Args:
      cfg: the optimizer section.
      steps: number of steps in the whole run.
      updates: of each step, which all have its rate.

    Returns:
      A function from an int32 scalar or array, the number of earlier updates, to float32 of the
      same shape.

    Reference: cosine, Loshchilov and Hutter (2017), equation 5; rsqrt, Vaswani et al. (2017),
      section 5.3; wsd, Hu et al. (2024), section 4.
    """
    start = cfg.warmup(steps)
    warmup = max(start, 1)
    last = max(steps - 1, 1)
    decay = cfg.decay_steps or max(steps // 10, 1)
    if cfg.schedule == "wsd":
        start = max(last - decay, start)

    def after_warmup(step):
        if cfg.schedule == "constant":
            return jnp.ones_like(step)
        if cfg.schedule == "rsqrt":
            return jnp.sqrt(warmup / jnp.maximum(step + 1, warmup))
        fall = jnp.clip((step - start) / max(last - start, 1), 0.0, 1.0)
        if cfg.schedule == "cosine":
            fall = 0.5 * (1 - jnp.cos(jnp.pi * fall))
        return 1 - (1 - cfg.final_fraction) * fall

    def rate(step):
        if updates > 1:
            step = step // updates
        step = jnp.asarray(step, jnp.float32)
        return cfg.learning_rate * jnp.minimum((step + 1) / warmup, 1.0) * after_warmup(step)

    return rate


class LeafLabel(NamedTuple):
    """The answers about a parameter's path that the update rule needs.

    Attributes:
      decays: whether it is a weight matrix or token embedding, which weight decay shrinks.
      is_router_bias: whether it is a router's bias, whose gradient holds the load of experts.
    """

    decays: bool
    is_router_bias: bool


@functools.lru_cache(maxsize=32)  # a step asks several times, and a path of a tree is slow to make
def label_leaves(structure: Any) -> tuple[LeafLabel, ...]:
    """Labels the leaves of a tree of parameters, once for each structure."""
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    labels = []
    for keys, _ in jax.tree_util.tree_leaves_with_path(tree):
        path = path_of(keys)
        labels.append(LeafLabel(bool(DECAYED.search(path)), bool(ROUTER_BIAS.search(path))))
    return tuple(labels)


def decay_mask(params: optax.Params) -> optax.Params:
    """Returns True for weight matrices and token embeddings, False for all other parameters."""
    structure = jax.tree.structure(params)
    return jax.tree.unflatten(structure, [label.decays for label in label_leaves(structure)])


def build(
    cfg: OptimizerConfig,
    steps: int,
    *,
    updates: int = 1,
    width: float | None = None,
    skip_spikes: float = 0.0,
    router_bias_update_rate: float = 0.0,
) -> optax.GradientTransformation:
    """Builds the update rule p <- p - rate(step) * (direction(clip(g)) + weight_decay * p).

    Only matrices decay. A parameter may have its own factor of the rate (per_param_lr.py), and an
    average of the weights may be kept (average.py).

    Args:
      cfg: the optimizer section; `name` is a file of training/optimizers or `module:make`.
      steps: number of steps in the whole run, for the schedule.
      updates: number of updates of each step.
      width: the ratio of the model's width to its base's, if rates follow the width
        (`model.width_rule`). The directions, but not the decay, are multiplied by powers of it that
        the optimizer defines. None if rates do not follow it.
      skip_spikes: the standard deviations above the mean from which on an update is skipped as a
        spike (spikes.py); 0 skips none.
      router_bias_update_rate: the amount by which a step moves the biases of routers against the
        sign of their gradient (nn/feed_forwards/moe.py); 0 if the model has none.

    Raises:
      ConfigError: the optimizer does not fit the other fields.
    """
    clip = optax.identity()
    if cfg.clip_norm:
        clip = optax.stateless(functools.partial(_clip, cfg.clip_norm))
    decay = optax.identity()
    if cfg.weight_decay:
        decay = optax.add_decayed_weights(cfg.weight_decay, decay_mask)
    plugin = registry.resolve("optimizers", cfg.name)
    direction = _made(plugin, cfg)
    if width is not None:
        powers = getattr(plugin, "WIDTH_POWERS", ())
        # Before the decay is added, which does not follow the width.
        direction = optax.chain(direction, per_param_lr.scale_by_width(cfg.name, powers, width))
    rate = schedule(cfg, steps, updates)
    # Decay comes after the direction, as in AdamW (Loshchilov and Hutter 2019): an optimizer that
    # divides by the root of the second moment would divide the decay, too.
    chain = optax.chain(clip, direction, decay, optax.scale_by_learning_rate(rate))
    rules = {"trained": chain}
    if router_bias_update_rate:
        # A rule of its own, as its gradient is a load of experts: clipping and decay have no
        # meaning there.
        move = functools.partial(_against_sign, router_bias_update_rate)
        rules["router_bias"] = optax.stateless(move)
    if cfg.freeze:
        rules["frozen"] = optax.set_to_zero()
    # Only if needed: partition changes the structure of the state, and so of checkpoints.
    if len(rules) > 1:
        chain = optax.partition(rules, functools.partial(_rules_of, cfg))
    if cfg.rates or cfg.layer_decay < 1:
        # After the whole chain, so that a factor scales the decay as well, as a rate of its own
        # would.
        chain = optax.chain(chain, per_param_lr.scale_by_path(cfg))
    if hasattr(plugin, "wrap"):
        if skip_spikes:
            raise ConfigError(
                f"train.skip_spikes={skip_spikes:g}, optimizer.name={cfg.name!r}: it would average"
                " the steps that are skipped; set train.skip_spikes=0."
            )
        chain = plugin.wrap(cfg, chain, rate, functools.partial(_frozen, cfg))

    def wide(tree):
        # The state is float32, like gradients. In bfloat16, a decay of 0.999 would round to 1, and
        # the second moment would never shrink.
        return jax.tree.map(lambda x: x.astype(jnp.float32), tree)

    def update(updates, state, params=None, **more):
        # Optax raises a float to the power of an integer count.
        with jax.numpy_dtype_promotion("standard"):
            return chain.update(wide(updates), state, wide(params), **more)

    def init(params):
        label_leaves(jax.tree.structure(params))  # before a step asks for them
        return chain.init(wide(params))

    tx = optax.GradientTransformationExtraArgs(init, update)
    if skip_spikes:
        tx = spikes.skip_spikes(tx, skip_spikes)
    if cfg.ema:
        # Outermost, as `evaluated_params` expects the average at the top of the state.
        tx = with_average(tx, cfg.ema, functools.partial(_frozen, cfg))
    return tx


def _made(plugin: Any, cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Returns what an optimizer's `make` does, which may be a user's."""
    try:
        made = plugin.make(cfg)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"optimizer.name={cfg.name!r}: raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, optax.GradientTransformation):
        raise ConfigError(
            f"optimizer.name={cfg.name!r}: returned a {type(made).__name__}; must return an optax"
            " transformation."
        )
    return made


def _rules_of(cfg: OptimizerConfig, params: optax.Params) -> optax.Params:
    """Names the rule that updates each parameter."""
    structure = jax.tree.structure(params)
    labels = label_leaves(structure)
    frozen = [False] * len(labels)
    if cfg.freeze:
        frozen = jax.tree.leaves(_frozen(cfg, params))
    rules = []
    for is_frozen, label in zip(frozen, labels, strict=True):
        if is_frozen:
            rules.append("frozen")
        elif label.is_router_bias:
            rules.append("router_bias")
        else:
            rules.append("trained")
    return jax.tree.unflatten(structure, rules)


def _against_sign(rate: float, updates: optax.Updates, _: object) -> optax.Updates:
    """Moves the bias of experts by the sign of their load (Wang et al. 2024, arXiv:2408.15664)."""
    return jax.tree.map(lambda g: -rate * jnp.sign(g), updates)


def are_floats(params: Tree) -> list[bool]:
    """Returns whether each leaf is floating; the codes of a quantized matrix have no gradient."""
    return [jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(params)]


def are_trained(cfg: OptimizerConfig, params: Tree) -> list[bool]:
    """Returns whether each leaf has a gradient: it is floating, and `cfg.freeze` does not name it.

    No gradient is computed of the others.
    """
    floats = are_floats(params)
    if not cfg.freeze:
        return floats
    frozen = jax.tree.leaves(_frozen(cfg, params))
    trained = []
    for is_float, is_frozen in zip(floats, frozen, strict=True):
        trained.append(is_float and not is_frozen)
    return trained


def trained(cfg: OptimizerConfig, params: optax.Params) -> list[jax.Array]:
    """Lists the leaves that are not frozen."""
    frozen = jax.tree.leaves(_frozen(cfg, params))
    leaves = []
    for leaf, is_frozen in zip(jax.tree.leaves(params), frozen, strict=True):
        if not is_frozen:
            leaves.append(leaf)
    return leaves


def _frozen(cfg: OptimizerConfig, params: optax.Params) -> optax.Params:
    """Returns True for each parameter that `cfg.freeze` names.

    Raises:
      ConfigError: a pattern that matches no parameter, or all parameters frozen.
    """
    paths = [path_of(keys) for keys, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in cfg.freeze:
        if not any(re.search(pattern, path) for path in paths):
            raise ConfigError(f"optimizer.freeze={pattern!r}: {per_param_lr.no_match(paths)}")
    frozen = []
    for path in paths:
        frozen.append(any(re.search(pattern, path) for pattern in cfg.freeze))
    if all(frozen):
        raise ConfigError(
            f"optimizer.freeze={cfg.freeze}: matches every parameter, so nothing is left to train."
        )
    return jax.tree.unflatten(jax.tree.structure(params), frozen)


def _clip(most: float, updates: optax.Updates, _: object) -> optax.Updates:
    """Scales the updates to a global norm of at most `most`.

    Multiplies by one factor, unlike optax, which divides every gradient: XLA would keep the
    quotients.
    """
    # A norm of zero gives infinity, and so the factor 1.
    factor = jnp.minimum(most / global_norm(updates), 1.0)
    return jax.tree.map(lambda g: (g * factor).astype(g.dtype), updates)


def global_norm(tree: Tree) -> jax.Array:
    """Computes the norm of the gradients of all parameters but routers' biases."""
    leaves = []
    labels = label_leaves(jax.tree.structure(tree))
    for leaf, label in zip(jax.tree.leaves(tree), labels, strict=True):
        if not label.is_router_bias:
            leaves.append(leaf)
    return norm_of_leaves(leaves)


def norm_of_leaves(leaves: Sequence[jax.Array]) -> jax.Array:
    """Computes the root of the sum of all squares in float32."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(x.astype(jnp.float32))) for x in leaves))
