"""Teacher forcing: the loss of a whole text in one pass is that of reading it token by token, as a
model writes.

    python examples/teacher_forcing.py

In training, the model reads the true token at each place, whatever it would have written there, so
all places are computed in one call. Decoding feeds one token at a time through the cache. Both sum
-log P(token | tokens before): by an LSTM, whose states still wait for each other in the one pass,
and by a transformer, whose places do not.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite import ModelConfig, Rope, build_model, init_cache
from flaxformer_lite.contrib.recurrent.models import recurrent
from flaxformer_lite.models import gpt2

LENGTH = 128
SIZES = dict(vocab_size=256, d_model=128, dropout=0.0)
MODELS = {
    "LSTM": recurrent.config("tiny", **SIZES),
    "transformer": gpt2.config("tiny", **SIZES, position=Rope()),
}


def losses(cfg: ModelConfig, length: int) -> tuple[float, float, float, float]:
    """Returns the losses of one text, in parallel and step by step, and the seconds that each
    took."""
    model = build_model(cfg)
    text = np.random.default_rng(0).integers(1, 256, (1, length + 1)).astype(np.int32)
    params = model.init(jax.random.key(0), text[:, :1])

    def nll(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).sum()

    @jax.jit
    def parallel(params):
        return nll(model.apply(params, text[:, :-1]).logits, text[:, 1:])

    @jax.jit
    def step_by_step(params):
        def write(carry, pair):
            cache, total = carry
            out = model.apply(params, pair[:, :1], cache=cache)
            return (out.cache, total + nll(out.logits, pair[:, 1:])), None

        pairs = jnp.stack([text[:, :-1], text[:, 1:]], axis=-1).swapaxes(0, 1)
        start = jax.tree.map(jnp.asarray, init_cache(cfg, 1, length)), jnp.float32(0)
        return jax.lax.scan(write, start, pairs)[0][1]

    found = []
    seconds = []
    for way in (parallel, step_by_step):
        way(params).block_until_ready()  # compiles
        times = []
        for _ in range(5):
            begun = time.process_time()
            loss = float(way(params)) / length
            times.append(time.process_time() - begun)
        found.append(loss)
        seconds.append(min(times))
    return *found, *seconds


def main() -> None:
    for name, cfg in MODELS.items():
        whole, steps, fast, slow = losses(cfg, LENGTH)
        print(
            f"{name:<12} loss {whole:.5f} in one pass, {steps:.5f} step by step; {slow / fast:.1f}"
            " times the time"
        )


if __name__ == "__main__":
    main()
