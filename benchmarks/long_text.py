"""Counts memory and FLOPs of one encoder layer over long rows, by the compiler of this CPU.

    python -m benchmarks.long_text                 # all, in about three minutes
    python -m benchmarks.long_text --lengths=4096  # of one length

One row, width 768, float32, without dropout. Nothing is run: memory is that of the compiled
program's temporaries, and FLOPs those of its equations.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp

from flaxformer_lite import build_model
from flaxformer_lite.analysis import flops
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig

LENGTHS = (4096, 16384, 65536)
DENSEST = 16384  # tokens from which on dense attention is left out: its memory is quadratic
SIZES = dict(vocab_size=128, dropout=0.0)


def t5(length: int, mixer: LocalGlobalConfig):
    return build_model(
        "longt5", "base", head="encoder", mixer=mixer, encoder_layers=1, decoder_layers=1, **SIZES
    )


def big_bird(length: int):
    return build_model(
        "big_bird", "base", head="none", max_length=length, encoder_layers=1, **SIZES
    )


def bert(length: int):
    return build_model(
        "bert", "base", head="none", max_length=length, attention="dense", encoder_layers=1, **SIZES
    )


LAYERS: dict[str, Callable] = {
    "LongT5, local": lambda length: t5(length, LocalGlobalConfig(global_block=0)),
    "LongT5, transient global": lambda length: t5(length, LocalGlobalConfig()),
    "BigBird": big_bird,
    "BERT, dense": bert,
}


def measure(layer: Callable, length: int) -> tuple[float, float, float]:
    """Returns MiB of temporaries forwards, MiB with the gradient, and GFLOPs forwards."""
    model = layer(length)
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]

    def forward(params, ids):
        output = model.apply({"params": params}, ids)
        return jnp.sum(jax.tree.leaves(output)[0].astype(jnp.float32))

    mebibytes = []
    for function in (forward, jax.grad(forward)):
        compiled = jax.jit(function).lower(params, ids).compile()
        mebibytes.append(compiled.memory_analysis().temp_size_in_bytes / 2**20)
    return (*mebibytes, flops.count(forward, params, ids) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    args = parser.parse_args()
    print("| layer | tokens | MiB forwards | MiB with gradient | GFLOPs forwards |")
    print("|---|--:|--:|--:|--:|")
    for name, layer in LAYERS.items():
        for length in args.lengths:
            if name == "BERT, dense" and length > DENSEST:
                continue
            forward, gradient, billions = measure(layer, length)
            cells = (name, f"{length:,}", f"{forward:,.0f}", f"{gradient:,.0f}", f"{billions:,.0f}")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
