"""Files of quantizers of today: each is read exactly, or refused with one sentence that names it.

FP8 in blocks and MXFP4 have files of their own, test_fp8.py and test_mxfp4.py.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.weight_map import WeightRow
from flaxformer_lite.pretrained import tensor_forms
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.models.tiny import logits_of
from tests.pretrained.fixtures import ROOT, stored
from tests.pretrained.test_families import FAMILIES, write_files

NAME = "model.layers.0.mlp.down_proj"
WEIGHT = f"{NAME}.weight"


def gptq(weight):
    """Eight numbers of four bits in an int32, along the inputs."""
    outputs, inputs = weight.shape
    return {
        f"{NAME}.qweight": np.zeros((inputs // 8, outputs), np.int32),
        f"{NAME}.qzeros": np.zeros((1, outputs // 8), np.int32),
        f"{NAME}.scales": np.ones((1, outputs), np.float16),
        f"{NAME}.g_idx": np.zeros(inputs, np.int32),
    }


def awq(weight):
    """The same along the outputs."""
    outputs, inputs = weight.shape
    return {
        f"{NAME}.qweight": np.zeros((inputs, outputs // 8), np.int32),
        f"{NAME}.qzeros": np.zeros((1, outputs // 8), np.int32),
        f"{NAME}.scales": np.ones((1, outputs), np.float16),
    }


def bitsandbytes_4bit(weight):
    return {
        WEIGHT: np.zeros((weight.size // 2, 1), np.uint8),
        f"{WEIGHT}.absmax": np.ones(weight.size // 64, np.float32),
        f"{WEIGHT}.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        f"{WEIGHT}.quant_state.bitsandbytes__nf4": np.zeros(8, np.uint8),
    }


def bitsandbytes_8bit(weight):
    scales = np.abs(weight).max(axis=1)
    codes = np.round(weight / scales[:, None] * 127).astype(np.int8)
    return {
        WEIGHT: codes,
        f"{NAME}.SCB": scales,
        f"{NAME}.weight_format": np.zeros((), np.uint8),
    }


def packed(weight):
    """compressed-tensors' pack-quantized."""
    outputs, inputs = weight.shape
    return {
        f"{NAME}.weight_packed": np.zeros((outputs, inputs // 8), np.int32),
        f"{NAME}.weight_scale": np.ones((outputs, 1), np.float32),
        f"{NAME}.weight_shape": np.array(weight.shape, np.int64),
    }


def int8_channels(weight):
    """compressed-tensors' int-quantized."""
    scales = np.abs(weight).max(axis=1, keepdims=True) / 127
    return {
        WEIGHT: np.round(weight / scales).astype(np.int8),
        f"{NAME}.weight_scale": scales,
    }


MADE = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "bitsandbytes in 4 bits": (bitsandbytes_4bit, {"load_in_4bit": True}),
    "bitsandbytes in 8 bits": (
        bitsandbytes_8bit,
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
    "compressed-tensors": (packed, {"quant_method": "compressed-tensors"}),
    "compressed-tensors or": (int8_channels, {"quant_method": "compressed-tensors"}),
}


@pytest.mark.parametrize("said", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize("method", MADE)
def test_what_is_not_read_is_refused_by_name(method, said, tmp_path):
    """config.json may not say it, as that of the first GPTQ files does not."""
    make, quantization = MADE[method]
    tensors = stored(ROOT / "llama_lm")
    weight = np.ones((32, 64), np.float32)
    del tensors[WEIGHT]
    save_file(tensors | make(weight), tmp_path / "model.safetensors")
    config = json.loads((ROOT / "llama_lm" / "config.json").read_text())
    if said:
        config["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((ConfigError, WeightsError)) as error:
        load_pretrained(tmp_path)
    message = str(error.value)
    assert "are not supported, only by mxfp4 and fp8" in message
    assert method.split()[0] in message
    assert "\n" not in message


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_stacked_experts_are_read_exactly_or_refused(name, exchanged, tmp_path):
    """A family whose own files have a tensor for each expert, as transformers 5 may stack them."""
    plain = tmp_path / "plain"
    write_files(FAMILIES[name]["config"], plain)
    tensors = stored(plain)
    stacked = tmp_path / "stacked"
    stacked.mkdir()
    singles = {one: x for one, x in tensors.items() if ".experts.0." in one}
    written = {one: x for one, x in tensors.items() if ".experts." not in one}
    count = FAMILIES[name]["config"].get("num_experts", 4)
    for one in singles:
        if not one.endswith("gate_proj.weight"):
            continue
        layer = one.removesuffix(".0.gate_proj.weight")
        ups = []
        downs = []
        for expert in range(count):
            parts = [tensors[f"{layer}.{expert}.{part}_proj.weight"] for part in ("gate", "up")]
            ups.append(np.concatenate(parts))
            downs.append(tensors[f"{layer}.{expert}.down_proj.weight"])
        up = np.stack(ups)
        down = np.stack(downs)
        if exchanged:
            up = np.ascontiguousarray(up.swapaxes(1, 2))
            down = np.ascontiguousarray(down.swapaxes(1, 2))
        written |= {f"{layer}.gate_up_proj": up, f"{layer}.down_proj": down}
    save_file(written, stacked / "model.safetensors")
    (stacked / "config.json").write_text((plain / "config.json").read_text())
    if name == "mixtral":  # whose experts are named w1, w2 and w3
        with pytest.raises(WeightsError, match=r"no tensor .*experts"):
            load_pretrained(stacked)
        return
    model, params = load_pretrained(plain)
    again, same = load_pretrained(stacked)
    ids = np.array([[5, 6, 7]], np.int32)
    np.testing.assert_array_equal(
        logits_of(again, same, input_ids=ids), logits_of(model, params, input_ids=ids)
    )


@pytest.mark.parametrize("shapes", [((), ()), ((3,), (3,)), ((2, 8, 4), ()), ((8, 4), (4, 4))])
def test_stacked_experts_of_another_shape_are_refused(shapes):
    rows = (WeightRow("layers.{i}.experts.{e}.gate_proj", "gate"),)
    up, down = (tensor_forms.Tensor(np.zeros(shape, np.float32)) for shape in shapes)
    tensors = {"a.experts.gate_up_proj": up, "a.experts.down_proj": down}
    with pytest.raises(WeightsError, match=r"a.experts.gate_up_proj has shape .* stacked experts"):
        tensor_forms.split_experts(rows, tensors)
