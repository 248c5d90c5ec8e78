"""Files of DeepSeek-V3 in blocks of FP8, with a layer that predicts a second token."""

import json
import logging

import jax
import ml_dtypes
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.safetensors import WeightsError, open_file, save_file
from flaxformer_lite.pretrained.tensor_forms import Fp8Tensor
from tests.pretrained import recipe
from tests.pretrained.test_families import FAMILIES, config_of, tensors_of

CONFIG = FAMILIES["deepseek_v3"]["config"] | {
    "hidden_size": 160,
    "intermediate_size": 144,
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
}
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
NAME = "model.layers.0.mlp.shared_experts.down_proj.weight"


def quantize(matrix):
    """Returns numbers in FP8, a factor for each block, and what they stand for."""
    blocks = [-(-size // 128) for size in matrix.shape]
    scales = np.zeros(blocks, np.float32)
    codes = np.zeros(matrix.shape, ml_dtypes.float8_e4m3fn)
    exact = np.zeros(matrix.shape, np.float32)
    for row in range(blocks[0]):
        for column in range(blocks[1]):
            at = np.s_[128 * row : 128 * (row + 1), 128 * column : 128 * (column + 1)]
            scales[row, column] = np.abs(matrix[at]).max() / 448
            codes[at] = matrix[at] / scales[row, column]
            exact[at] = codes[at].astype(np.float32) * scales[row, column]
    return codes, scales, exact


def write(folder, stored, quantization=QUANTIZATION):
    entries = {name: (array.shape, array.dtype) for name, array in stored.items()}
    save_file(folder / "model.safetensors", entries, stored.values())
    config = CONFIG | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A quantized folder, and the tensors that it stands for."""
    folder = tmp_path_factory.mktemp("fp8")
    shapes = tensors_of(config_of(CONFIG, CONFIG["architectures"][0]))
    tensors = {name: recipe.tensor(name, shape) for name, shape in shapes.items()}
    stored = dict(tensors)
    for name in tensors:
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"], tensors[name] = quantize(stored[name])
    stored["model.layers.1.eh_proj.weight"] = stored[NAME]
    stored["model.layers.1.eh_proj.weight_scale_inv"] = stored[f"{NAME}_scale_inv"]
    write(folder, stored)
    return folder, tensors


def test_blocks_are_read_exactly_and_the_second_prediction_is_left_out(folder, caplog):
    folder, tensors = folder
    with caplog.at_level(logging.WARNING):
        model, params = load_pretrained(folder)
    assert "eh_proj.weight left out: the prediction of a second token" in caplog.text
    shared = params["decoder"]["layer_0"]["mlp"]["shared"]
    np.testing.assert_array_equal(shared["down"]["kernel"], tensors[NAME].T)
    logits = jax.jit(model.apply)({"params": params}, np.asarray([[5, 6, 7]])).logits
    assert np.isfinite(logits).all()


def test_a_slice_has_the_factors_of_its_own_blocks():
    matrix = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    codes, scales, exact = quantize(matrix)
    tensor = Fp8Tensor(codes, scales)
    at = np.s_[100:270:3, 120:]
    np.testing.assert_array_equal(tensor.read(at), exact[at])
    np.testing.assert_array_equal(tensor.read(at[:1]), exact[100:270:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scales: None, "FP8 needs .*_scale_inv in float32"),
        (lambda scales: scales[:1], r"a factor for each block of 128 x 128"),
        (lambda scales: np.full_like(scales, np.inf), "not finite"),
    ],
)
def test_damaged_factors_are_refused(folder, tmp_path, change, message):
    stored = {name: one.read() for name, one in open_file(folder[0] / "model.safetensors").items()}
    changed = change(stored.pop(f"{NAME}_scale_inv"))
    if changed is not None:
        stored[f"{NAME}_scale_inv"] = changed
    write(tmp_path, stored)
    with pytest.raises(WeightsError, match=message):
        load_pretrained(tmp_path)


def test_blocks_of_another_size_are_refused(tmp_path):
    write(tmp_path, {}, QUANTIZATION | {"weight_block_size": [64, 64]})
    with pytest.raises(ConfigError, match=r"weight_block_size=\[64, 64\].*128 x 128"):
        load_pretrained(tmp_path)
