"""Writes the numbers of tests/contrib/keras_hub/test_keras_hub.py with KerasHub itself.

It runs where keras-hub is installed, not in this project's environment:

    KERAS_BACKEND=jax python tools/keras_hub_numbers.py tests/contrib/keras_hub/keras_hub.json

For each model it stores the files of JSON that `save_to_preset` writes, the name and shape of each
array in its h5 files, and KerasHub's outputs when each array holds `values(name, shape)`.
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path

import h5py
import keras_hub
import numpy as np
from keras_hub import models

SIZES = dict(
    vocabulary_size=40, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12, dropout=0.0
)
ENCODER = SIZES | dict(max_sequence_length=16)
GEMMA = dict(
    vocabulary_size=40,
    num_layers=2,
    num_query_heads=4,
    num_key_value_heads=2,
    hidden_dim=16,
    intermediate_dim=24,
    head_dim=6,
)
GEMMA2 = GEMMA | dict(
    use_post_ffw_norm=True,
    use_post_attention_norm=True,
    attention_logit_soft_cap=20.0,
    final_logit_soft_cap=10.0,
    use_sliding_window_attention=True,
    sliding_window_size=3,
)
MODELS = {
    "bert": lambda: models.BertBackbone(**ENCODER),
    "bert_classifier": lambda: models.BertTextClassifier(
        models.BertBackbone(**ENCODER), num_classes=3
    ),
    "roberta_masked_lm": lambda: models.RobertaMaskedLM(models.RobertaBackbone(**ENCODER)),
    "roberta_classifier": lambda: models.RobertaTextClassifier(
        models.RobertaBackbone(**ENCODER), num_classes=3
    ),
    "t5": lambda: models.T5Seq2SeqLM(
        models.T5Backbone(**SIZES, use_gated_activation=False, activation="relu")
    ),
    "t5_1_1": lambda: models.T5Seq2SeqLM(
        models.T5Backbone(**SIZES, activation="gelu", key_value_dim=3, tie_embedding_weights=False)
    ),
    "gemma": lambda: models.GemmaCausalLM(models.GemmaBackbone(**GEMMA)),
    "gemma2": lambda: models.GemmaCausalLM(models.GemmaBackbone(**GEMMA2)),
}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws an array from its name, the same here and in the test."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


def arrays(path: Path) -> dict[str, list[int]]:
    """Fills the arrays of an h5 file with their values, and returns their shapes."""
    shapes = {}
    with h5py.File(path, "r+") as file:

        def fill(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                shapes[name] = list(item.shape)
                item[...] = values(name, item.shape)

        file.visititems(fill)
    return shapes


def inputs(model: object) -> dict[str, np.ndarray]:
    ids = np.array([[5, 3, 8, 2, 9, 7], [4, 4, 21, 11, 0, 0]], np.int32)
    mask = (ids > 0).astype(np.int32)
    given = {"token_ids": ids, "padding_mask": mask, "segment_ids": 1 - mask}
    given["mask_positions"] = np.array([[0, 1, 2, 3]] * 2, np.int32)
    given |= {"encoder_token_ids": ids, "encoder_padding_mask": mask}
    given |= {"decoder_token_ids": ids[:, ::-1][:, 2:], "decoder_padding_mask": mask[:, :4]}
    return {name: given[name] for name in model.input}


def main(target: str) -> None:
    written = {"keras_hub": keras_hub.__version__}
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            model = make()
            model.save_to_preset(folder)
            files = {path.name: arrays(path) for path in sorted(made.glob("*.h5"))}
            alone = {} if isinstance(model, models.Backbone) else {"preprocessor": None}
            outputs = type(model).from_preset(folder, **alone)(inputs(model))
            outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
            configs = {}
            for path in sorted(made.glob("*.json")):
                if path.name != "metadata.json":
                    configs[path.name] = json.loads(path.read_text())
            written[name] = {
                "configs": configs,
                "arrays": files,
                "inputs": {key: x.tolist() for key, x in inputs(model).items()},
                "outputs": {
                    key: np.round(np.asarray(x, np.float64), 6).tolist()
                    for key, x in outputs.items()
                },
            }
    Path(target).write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
