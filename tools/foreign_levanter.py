"""Writes the numbers of tests/pretrained/foreign/test_levanter.py with levanter itself.

    python tools/foreign_levanter.py LEVANTER tests/pretrained/foreign/levanter.json

LEVANTER is a checkout of stanford-crfm/levanter. It runs with haliax 1.4.dev453, jax 0.7.2,
equinox, draccus and tensorstore, not in this project's environment; what else levanter imports, of
loading and training, is left out.

For each model it stores the name and shape of each array in a checkpoint, and levanter's logits
when each array holds `values(name, shape)`.
"""

import importlib.machinery
import json
import sys
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore

IDS = np.array([[5, 3, 8, 2, 9, 7], [4, 14, 11, 1, 6, 6]])
VOCABULARY = 16
ABSENT = (
    "async_lru",
    "braceexpand",
    "chex",
    "dataclasses_json",
    "datasets",
    "deepdiff",
    "filelock",
    "gcsfs",
    "git",
    "huggingface_hub",
    "humanfriendly",
    "lenses",
    "psutil",
    "pyarrow",
    "pydantic",
    "pytimeparse",
    "ray",
    "regex",
    "requests",
    "safetensors",
    "tblib",
    "tokenizers",
    "torch",
    "tqdm",
    "tqdm_loggable",
    "transformers",
    "wandb",
    "zstandard",
)


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws an array from its name, the same here and in the test."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


class Absent:
    """An importer that makes empty modules of packages that are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return mock.MagicMock(__path__=[], __spec__=spec, __name__=spec.name, __file__="")

    def exec_module(self, module):
        pass


def models() -> dict:
    from levanter.layers.attention import AttentionBackend
    from levanter.layers.rotary import DefaultRotaryEmbeddingsConfig, Llama3RotaryEmbeddingsConfig
    from levanter.models.gpt2 import Gpt2Config, Gpt2LMHeadModel
    from levanter.models.llama import LlamaConfig, LlamaLMHeadModel

    shared = dict(
        seq_len=16,
        hidden_dim=12,
        num_layers=2,
        attn_backend=AttentionBackend.VANILLA,
        gradient_checkpointing=False,
    )
    llama = shared | dict(intermediate_dim=8, num_heads=4, head_dim=4, num_kv_heads=2)
    plain = DefaultRotaryEmbeddingsConfig(theta=400000)
    scaled = Llama3RotaryEmbeddingsConfig(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8
    )
    return {
        "llama": (LlamaLMHeadModel, LlamaConfig(rope=plain, **llama)),
        "llama_unstacked": (LlamaLMHeadModel, LlamaConfig(rope=plain, scan_layers=False, **llama)),
        "llama3_tied": (
            LlamaLMHeadModel,
            LlamaConfig(rope=scaled, tie_word_embeddings=True, **llama),
        ),
        "gpt2": (Gpt2LMHeadModel, Gpt2Config(num_heads=3, **shared)),
    }


def main(checkout: str, target: str) -> None:
    sys.path.insert(0, f"{checkout}/src")
    sys.meta_path.insert(0, Absent())
    import haliax
    from levanter.layers.attention import AttentionMask
    from levanter.tensorstore_serialization import (
        tree_deserialize_leaves_tensorstore,
        tree_serialize_leaves_tensorstore,
    )

    vocabulary = haliax.Axis("vocab", VOCABULARY)
    ids = haliax.named(jnp.array(IDS), ("batch", "position"))
    written = {}
    for name, (kind, config) in models().items():
        tree = {"model": kind.init(vocabulary, config, key=jax.random.PRNGKey(0))}
        with tempfile.TemporaryDirectory() as folder:
            tree_serialize_leaves_tensorstore(folder, tree)
            shapes = {}
            for file in sorted(Path(folder).rglob(".zarray")):
                path = file.parent.relative_to(folder).as_posix()
                spec = {"driver": "zarr", "kvstore": f"file://{file.parent}/"}
                array = tensorstore.open(spec).result()
                shapes[path] = list(array.shape)
                if array.dtype.name == "float32":  # not a dropout's flag of inference
                    array.write(values(path, array.shape)).result()
            mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
            read = tree_deserialize_leaves_tensorstore(folder, tree, {}, mesh)["model"]
        logits = read(ids, attn_mask=AttentionMask.causal())
        written[name] = {
            "arrays": shapes,
            "logits": np.round(np.asarray(logits.array, np.float64), 6).tolist(),
        }
    Path(target).write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
