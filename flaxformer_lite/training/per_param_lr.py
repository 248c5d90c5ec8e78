"""Factors of the learning rate, by patterns of paths and by the depth of layers."""

import re
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from flaxformer_lite.config import ConfigError, OptimizerConfig
from flaxformer_lite.sharding.parameters import path_of

# groups: the stack, and the number of the layer or of its kind
LAYER = re.compile(r"^(.*?)(?:layer_(\d+)|layers/block_(\d+))/")
# the kernel of a vocabulary head, which logits divide by the width
READOUT = re.compile(r"(^|/)(lm_head|vocab)/kernel$")
EMBEDDING = re.compile(r"(^|/)(\w*embed\w*|position\w*)/")


def scale_by_path(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the transformation that multiplies each update by its factor, unless that is 1."""

    def init(params: optax.Params) -> optax.EmptyState:
        factors(cfg, params)
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: optax.EmptyState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.EmptyState]:
        def scale(update, factor):
            if np.all(factor == 1):
                return update
            return update * jnp.asarray(factor, update.dtype)

        shapes = updates if params is None else params
        return jax.tree.map(scale, updates, factors(cfg, shapes)), state

    return optax.GradientTransformation(init, update)


def scale_by_width(
    optimizer: str, powers: Sequence[tuple[str, float]], width: float
) -> optax.GradientTransformation:
    """Builds the transformation that multiplies directions by powers of the model's width.

    Args:
      optimizer: its name, for errors.
      powers: pairs of a pattern of paths and a power; the first that matches counts, and weights
        that match none keep their rate, as input weights, norms and biases do.
      width: the model's width by its base's.

    Raises:
      ConfigError: the optimizer has no powers.

    Reference: Yang et al. 2022, "Tensor Programs V" (arXiv:2203.03466), table 8.
    """
    if not powers:
        raise ConfigError(
            f"optimizer.name={optimizer!r}, model.width_rule='mup': it does not say how its rates"
            " follow the width (WIDTH_POWERS); choose adamw, lion, muon,"
            " muon_spectral or schedule_free, or width_rule=standard."
        )

    def factor(path: str) -> float:
        if READOUT.search(path):
            return 1.0
        for pattern, power in powers:
            if re.search(pattern, path):
                return width**power
        return 1.0

    def scale(keys: tuple, update: jax.Array) -> jax.Array:
        return update * factor(path_of(keys))

    def update(updates: optax.Updates, _: optax.Params | None) -> optax.Updates:
        return jax.tree_util.tree_map_with_path(scale, updates)

    return optax.stateless(update)


def factors(cfg: OptimizerConfig, params: optax.Params) -> optax.Params:
    """Computes the factor of each parameter's rate.

    It is the product of all matching `rates` and the factor of the parameter's depth. With decay d
    and layers 0 .. L-1 in its stack, layer l has d^(L - l); embeddings and position tables have
    d^(L + 1) of the deepest stack, and everything above the layers (final norms, heads) has 1.

    Returns:
      A tree of float32 scalars, or for stacked layers (`scan`) of arrays [Y, 1, ...] that broadcast
      to the parameter.

    Raises:
      ConfigError: a pattern matches no parameter, or the model has no numbered layers.

    Reference: Clark et al. (2020), layer-wise decay of ELECTRA's fine-tuning, with BEiT's
      exponents, Bao et al. (2022).
    """
    leaves = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        leaves[path_of(keys)] = leaf
    by_path = dict.fromkeys(leaves, np.ones((), np.float32))
    if cfg.layer_decay < 1:
        by_path = _by_depth(cfg.layer_decay, leaves)
    for rate in cfg.rates:
        pattern, _, factor = rate.rpartition("=")
        matches = [path for path in leaves if re.search(pattern, path)]
        if not matches:
            raise ConfigError(f"optimizer.rates={rate!r}: {no_match(leaves)}")
        for path in matches:
            by_path[path] = np.asarray(by_path[path] * np.float32(factor))
    return jax.tree.unflatten(jax.tree.structure(params), list(by_path.values()))


def no_match(paths: Iterable[str]) -> str:
    """Returns the end of the message about a pattern that matches none of the paths."""
    return f"matches no parameter; the first are {', '.join(list(paths)[:3])}."


def _by_depth(decay: float, leaves: dict[str, jax.Array]) -> dict[str, np.ndarray]:
    layers = {}
    kinds: dict[str, int] = {}  # stack -> layers side by side, or kinds of layer in its period
    for path in leaves:
        layer = LAYER.match(path)
        if layer is None:
            continue
        layers[path] = layer
        stack, side, kind = layer.groups()
        kinds[stack] = max(kinds.get(stack, 0), 1 + int(side or kind))
    if not layers:
        raise ConfigError(
            f"optimizer.layer_decay={decay:g}: this model has no layers layer_0, layer_1, ...;"
            " set 1."
        )

    def numbers(path: str) -> tuple[np.ndarray, int]:
        """Returns the number of the layer, or of each stacked layer, and the depth of the stack."""
        stack, side, kind = layers[path].groups()
        if side:
            return np.asarray(int(side)), kinds[stack]
        rows, *rest = leaves[path].shape
        layer_numbers = np.arange(rows) * kinds[stack] + int(kind)
        broadcast = layer_numbers.reshape(rows, *[1] * len(rest))
        return broadcast, rows * kinds[stack]

    deepest = max(numbers(path)[1] for path in layers)

    def exponent(path: str) -> np.ndarray | int:
        if path in layers:
            number, depth = numbers(path)
            return depth - number
        return deepest + 1 if EMBEDDING.search(path) else 0

    factors = {}
    for path in leaves:
        factors[path] = np.asarray(decay ** np.asarray(exponent(path)), np.float32)
    return factors
