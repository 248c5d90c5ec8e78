"""Files of gpt-oss in MXFP4, made by a quantizer of the test."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.pretrained import recipe
from tests.pretrained.test_families import FAMILIES, config_of, tensors_of

VALUES = [sign * x for sign in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
CONFIG = FAMILIES["gpt_oss"]["config"] | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "layer_types": ["sliding_attention"],
}
QUANTIZED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["x"]}}


def quantize(tensor_XIO):
    """Returns blocks, scales, and the numbers that they stand for."""
    rows = np.ascontiguousarray(np.swapaxes(tensor_XIO, 1, 2))
    blocked = rows.reshape(*rows.shape[:2], -1, 32)
    exponents = np.floor(np.log2(np.abs(blocked).max(-1))).astype(int) - 2
    scaled = blocked / 2.0 ** exponents[..., None]
    codes = np.abs(scaled[..., None] - np.asarray(VALUES)).argmin(-1).astype(np.uint8)
    exact = np.asarray(VALUES)[codes] * 2.0 ** exponents[..., None]
    blocks = codes[..., 0::2] | (codes[..., 1::2] << 4)
    numbers = np.swapaxes(exact.reshape(rows.shape), 1, 2)
    return blocks, (exponents + 127).astype(np.uint8), numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A quantized folder, and the tensors that it stands for."""
    folder = tmp_path_factory.mktemp("mxfp4")
    shapes = tensors_of(config_of(CONFIG, CONFIG["architectures"][0]))
    tensors = {name: recipe.tensor(name, shape) for name, shape in shapes.items()}
    stored = dict(tensors)
    for name in tensors:
        if name.endswith("_proj"):
            blocks, scales, tensors[name] = quantize(stored.pop(name))
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | QUANTIZED))
    return folder, tensors


def test_a_quantized_file_is_read_exactly_and_written_as_bfloat16(folder, tmp_path):
    folder, tensors = folder
    model, params = load_pretrained(folder, param_dtype="bfloat16")
    experts = params["decoder"]["layer_0"]["mlp"]["experts"]
    fused = tensors["model.layers.0.mlp.experts.gate_up_proj"]
    np.testing.assert_array_equal(np.float32(experts["gate"]["kernel"]), fused[..., ::2])
    np.testing.assert_array_equal(np.float32(experts["up"]["kernel"]), fused[..., 1::2])
    logits = jax.jit(model.apply)({"params": params}, np.asarray([[5, 6, 7]])).logits
    assert np.isfinite(np.float32(logits)).all()
    save_pretrained(tmp_path / "again", model, params, like=folder)
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert "quantization_config" not in json.loads((tmp_path / "again/config.json").read_text())
    assert set(written) == set(tensors)
    for name in (one for one in tensors if one.endswith("_proj")):
        assert written[name].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(np.float32(written[name]), tensors[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scales: None, "needs .*_scales of uint8"),
        (lambda scales: scales[..., :-1].copy(), "MXFP4 is"),
        (lambda scales: np.full_like(scales, 255), "255"),
    ],
)
def test_damaged_blocks_are_refused(folder, tmp_path, change, message):
    stored = load_file(folder[0] / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    changed = change(stored.pop(name))
    stored |= {} if changed is None else {name: changed}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | QUANTIZED))
    with pytest.raises(WeightsError, match=message):
        load_pretrained(tmp_path)


def test_other_quantizations_are_refused(folder, tmp_path):
    quantized = {"quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | quantized))
    with pytest.raises(ConfigError, match=r"gptq.* are not supported"):
        load_pretrained(tmp_path)
