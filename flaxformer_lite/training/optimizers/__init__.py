"""Optimizers, one per file and named after it, or `module:make` for a function elsewhere.

A file defines

    make(cfg: OptimizerConfig) -> optax.GradientTransformation

which turns clipped float32 gradients into directions: what is added to the decay, times the
learning rate, and subtracted. It may define

    WIDTH_POWERS: tuple[tuple[str, float], ...]

which says how the rates of weights change with `model.width_rule=mup`: pairs of a pattern of paths
and a power of the width; without it, the rule is refused. And it may define

    wrap(cfg, tx, rate, frozen) -> optax.GradientTransformationExtraArgs

which changes the whole chain of clip, direction, decay and rate. If its state is an `EmaState`
(training/average.py), the `ema` of that is what is evaluated and published.
"""

# Files that are not plug-ins.
SHARED = ("hidden_matrices", "elementwise")
