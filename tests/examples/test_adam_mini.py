"""Adam-mini against its paper's equations."""

import jax
import numpy as np
import optax

from flaxformer_lite.config import OptimizerConfig
from flaxformer_lite.training import optimizer

PLAIN = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": 0.0}


# the axes over which each parameter's block lies
BLOCKS = {
    "token_embed/embedding": ((5, 3), 1),
    "lm_head/kernel": ((5, 3), 1),
    "layer_0/attention/query/kernel": ((3, 2, 4), (0, 2)),
    "layer_0/attention/value/kernel": ((3, 2, 4), 0),
    "layer_0/attention/out/kernel": ((2, 4, 3), (0, 1)),
    "layer_0/attention/query/bias": ((2, 4), (0, 1)),
    "layers/mlp/experts/up/kernel": ((2, 2, 3, 4), 2),
    "layers/norm/scale": ((2, 3), 1),
}


def test_adam_mini_is_adam_with_one_second_moment_a_block():
    draw = np.random.default_rng(0).standard_normal
    shapes = {path: shape for path, (shape, _) in BLOCKS.items()}
    gradients = [{path: np.float32(draw(x)) for path, x in shapes.items()} for _ in range(3)]
    cfg = OptimizerConfig(name="examples.adam_mini:make", learning_rate=1.0, **PLAIN)
    tx = optimizer.build(cfg, 3)

    @jax.jit
    def run(gradients):
        opt_state = tx.init(gradients[0])
        for grads in gradients:
            updates, opt_state = tx.update(grads, opt_state, grads)
        return updates, opt_state

    updates, opt_state = run(gradients)
    for path, (_, axes) in BLOCKS.items():
        m = 0.0
        v = 0.0
        for grads in gradients:
            m = cfg.b1 * m + (1 - cfg.b1) * grads[path]
            v = cfg.b2 * v + (1 - cfg.b2) * np.mean(grads[path] ** 2, axis=axes, keepdims=True)
        m = m / (1 - cfg.b1**3)
        v = v / (1 - cfg.b2**3)
        np.testing.assert_allclose(updates[path], -m / (np.sqrt(v) + cfg.eps), rtol=1e-4)
    kept = optax.tree.get(opt_state, "v_block")
    assert sum(v.size for v in kept.values()) == 5 + 5 + 2 + 8 + 3 + 1 + 16 + 2
