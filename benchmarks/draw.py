"""Writes random weights of a case's model in transformers' form, for all peers to generate with.

python -m benchmarks.draw CASE FOLDER
"""

import json
import sys

import jax
import jax.numpy as jnp

from benchmarks import cases, ours
from flaxformer_lite import build_model, save_pretrained

if __name__ == "__main__":
    case = cases.Case(**json.loads(sys.argv[1]))
    folder = sys.argv[2]
    model = build_model(ours.model_config(case))
    ids = jnp.zeros((1, 1), jnp.int32)
    more = {"decoder_input_ids": ids} if case.family == "t5" else {}
    save_pretrained(folder, model, jax.jit(model.init)(jax.random.key(0), ids, **more)["params"])
