"""Adafactor: Shazeer and Stern (2018), algorithm 4. Uses no b1, b2 or eps."""

import optax

from flaxformer_lite.config import OptimizerConfig


def make(_: OptimizerConfig) -> optax.GradientTransformation:
    """Builds the direction, whose size is relative to the parameter's."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        # The threshold d that the paper proposes (algorithm 6).
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )
