"""The two random matrices that all layers of a VeRA adapter share, in PEFT's form."""

import functools
import math

import numpy as np

from flaxformer_lite.nn.adapters.vera import A, B

NAMES = {
    A: "base_model.vera_A",
    B: "base_model.vera_B",
}


@functools.lru_cache(maxsize=2)
def draw(seed: int, rank: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Returns A [rank, inputs] and B [outputs, rank] as PEFT draws them, bit for bit.

    These are `torch.Tensor.uniform_` from the generator `manual_seed(seed)`, a Mersenne Twister: 24
    bits of each of its numbers, scaled in float64.

    Args:
      seed: `projection_prng_key`.
      rank: `r`.
      inputs, outputs: the largest numbers of them among the adapted matrices.
    """
    # torch seeds its Twister by the lower 32 bits.
    twister = np.random.RandomState(seed & 0xFFFFFFFF)

    def uniform(rows: int, columns: int) -> np.ndarray:
        # In torch's order of operations, as sqrt(6 / columns) may round otherwise.
        bound = math.sqrt(3.0) * (math.sqrt(2) / math.sqrt(columns))
        low = np.float32(-bound)
        width = np.float32(bound) - low
        bits = np.frombuffer(twister.bytes(4 * rows * columns), "<u4") & 0xFFFFFF
        drawn = bits * 2.0**-24 * np.float64(width) + np.float64(low)
        return drawn.astype(np.float32).reshape(rows, columns)

    return {A: uniform(rank, inputs), B: uniform(outputs, rank)}
