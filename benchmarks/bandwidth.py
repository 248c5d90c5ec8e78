"""Measures how fast products read matrices from memory, which limits generation.

    python -m benchmarks.bandwidth

XLA:CPU multiplies one row by a matrix on one thread; two matrices are read by two.
"""

import time

import jax
import jax.numpy as jnp

# 268 MB in float32, more than caches hold
ROWS = 2048
COLUMNS = 32768
TURNS = 30


@jax.jit
def multiply(x_1I: jax.Array, kernels_IO: list[jax.Array]) -> list[jax.Array]:
    return [x_1I @ kernel_IO for kernel_IO in kernels_IO]


def read_speed(matrices: int) -> float:
    """Returns the bytes a second of the fastest turn."""
    x_1I = jnp.ones((1, ROWS))
    keys = jax.random.split(jax.random.key(0), matrices)
    kernels = [jax.random.normal(key, (ROWS, COLUMNS)) for key in keys]
    jax.block_until_ready(multiply(x_1I, kernels))
    seconds = []
    for _ in range(TURNS):
        began = time.perf_counter()
        jax.block_until_ready(multiply(x_1I, kernels))
        seconds.append(time.perf_counter() - began)
    return sum(kernel.nbytes for kernel in kernels) / min(seconds)


if __name__ == "__main__":
    for threads in (1, 2):
        print(f"{threads} threads: {read_speed(threads) / 1e9:.1f} GB/s")
