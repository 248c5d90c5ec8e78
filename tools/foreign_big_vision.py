"""Writes the numbers of tests/pretrained/foreign/test_big_vision.py with big_vision's own modules.

    python tools/foreign_big_vision.py BIG_VISION tests/pretrained/foreign/big_vision.json

BIG_VISION is a checkout of google-research/big_vision, of which models/vit.py and
models/proj/image_text/text_transformer.py run, without what they need for loading and training.
"""

import json
import sys
import types
import zlib
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

SIZES = dict(width=8, depth=2, mlp_dim=12, num_heads=2, vocab_size=40)
IDS = np.array([[5, 3, 8, 2, 9, 1], [4, 21, 11, 1, 1, 1]])


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws an array from its name, the same here and in the test."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


def main(checkout: str, target: str) -> None:
    sys.path.insert(0, checkout)
    for name in ("utils", "models.common"):  # of loading, which does not run here
        sys.modules[f"big_vision.{name}"] = types.ModuleType(name)
    import big_vision
    import big_vision.models

    big_vision.utils = sys.modules["big_vision.utils"]
    big_vision.models.common = sys.modules["big_vision.models.common"]
    from big_vision.models.proj.image_text import text_transformer

    written = {"inputs": IDS.tolist()}
    for name, scan in (("side_by_side", False), ("scanned", True)):
        model = text_transformer.Model(num_classes=6, scan=scan, pool_type="last", **SIZES)
        shapes = jax.eval_shape(model.init, jax.random.key(0), IDS)["params"]
        flat = {path: leaf.shape for path, leaf in flatten_dict(shapes, sep="/").items()}
        params = {path: values(path, shape) for path, shape in flat.items()}
        pooled, out = model.apply({"params": unflatten_dict(params, sep="/")}, IDS)
        outputs = {"last_hidden_state": out["transformed"], "pooler_output": pooled}
        written[name] = {
            "arrays": {path: list(shape) for path, shape in flat.items()},
            "outputs": {
                key: np.round(np.asarray(x, np.float64), 6).tolist() for key, x in outputs.items()
            },
        }
    Path(target).write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
