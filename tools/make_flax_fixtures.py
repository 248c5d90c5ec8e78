"""Adds flax_model.msgpack to some of tests/fixtures, as the last Flax models of transformers saved
it.

    python3.11 -m venv /tmp/flax && /tmp/flax/bin/pip install transformers==4.57.6 jax==0.7.2
    flax==0.12.0 safetensors JAX_PLATFORMS=cpu /tmp/flax/bin/python tools/make_flax_fixtures.py

To be run after make_fixtures.py, which clears the directories. The msgpack lies beside the
safetensors it was made from, so expected.npz holds for both, and the two must load alike. T5's is
sharded, with its index; Gemma's is bfloat16; the others have the dtype of their file.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import numpy as np
import transformers

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
NAMES = (
    "bert_pretraining",
    "distilbert_sequence_classification",
    "electra_masked_lm",
    "albert_pretraining",
    "gpt2_lm",
    "gptj_lm",
    "opt_lm",
    "gemma_lm",
    "t5_conditional_generation",
    "bart_conditional_generation",
)


def main() -> None:
    """Converts, checks the Flax model's own outputs against the stored ones, and saves."""
    transformers.logging.set_verbosity_error()
    rows = json.loads((FIXTURES / "manifest.json").read_text())["fixtures"]
    for name in NAMES:
        model_class = getattr(transformers, f"Flax{rows[name]['architecture']}")
        model = model_class.from_pretrained(FIXTURES / name, dtype=jnp.float32)
        gap = distance(name, model)
        if gap > 5e-6:
            raise SystemExit(f"{name}: Flax and torch differ by {gap:.1e}")
        with TemporaryDirectory() as saved:
            model.save_pretrained(saved, max_shard_size="20KB" if name.startswith("t5") else "1GB")
            for path in Path(saved).glob("*.msgpack*"):
                shutil.copy(path, FIXTURES / name)
        print(f"{name:36s} Flax against torch {gap:.1e}")


def distance(name: str, model: transformers.FlaxPreTrainedModel) -> float:
    """Returns the largest relative distance from the stored outputs, where attention_mask is 1, in
    float32."""
    params = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), model.params)
    with np.load(FIXTURES / name / "expected.npz") as stored:
        arrays = {
            key.removeprefix("default/"): stored[key]
            for key in stored.files
            if key.startswith("default/")
        }
    inputs = {
        key.removeprefix("in/"): value for key, value in arrays.items() if key.startswith("in/")
    }
    masks = {
        inputs[key].shape: inputs[key].astype(bool)
        for key in inputs
        if key.endswith("attention_mask")
    }
    outputs = model(**inputs, params=params)
    gaps = []
    for key, value in (
        (key.removeprefix("out/"), value) for key, value in arrays.items() if key.startswith("out/")
    ):
        keep = masks.get(value.shape[:2], ...)
        gaps.append(
            float(np.abs(np.asarray(outputs[key]) - value)[keep].max() / np.abs(value[keep]).max())
        )
    return max(gaps)


if __name__ == "__main__":
    main()
