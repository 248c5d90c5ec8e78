"""What other trainers save: mlx-lm's adapters, and names around those of transformers."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.pretrained.fixtures import ROOT, outputs, part

BASE = ROOT / "llama_lm"


def logits_of(folder, **options):
    model, params = load_pretrained(folder, **options)
    return np.asarray(outputs(model, params, part(BASE.name, "default/in/")).logits)


def write_mlx_adapter(folder, peft, **changes):
    """Writes an adapter of PEFT as mlx-lm saves it: other names, and factors transposed."""
    names = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}
    names[".lora_magnitude_vector"] = ".m"
    written = {}
    for name, tensor in load_file(peft / "adapter_model.safetensors").items():
        (ending,) = [one for one in names if name.endswith(one)]
        short = name.removeprefix("base_model.model.").removesuffix(ending) + names[ending]
        written[short] = np.ascontiguousarray(tensor.T)
    fields = json.loads((peft / "adapter_config.json").read_text())
    rank = fields["r"]
    scale = fields["lora_alpha"] / (rank**0.5 if fields["use_rslora"] else rank)
    config = {
        "fine_tune_type": "dora" if fields["use_dora"] else "lora",
        "model": "mlx-community/a-model",
        "num_layers": 2,
        "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0},
    }
    folder.mkdir()
    save_file(written, folder / "adapters.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("name", ["llama_lm", "llama_lm-dora"])
def test_an_adapter_of_mlx_lm_computes_what_the_same_of_peft_does(name, tmp_path):
    peft = ROOT / "adapters" / name
    write_mlx_adapter(tmp_path / "mlx", peft)
    of_mlx = logits_of(BASE, adapter=tmp_path / "mlx")
    np.testing.assert_allclose(of_mlx, logits_of(BASE, adapter=peft), atol=1e-6)


def test_whole_layers_of_mlx_lm_are_refused_with_the_command_that_writes_a_model(tmp_path):
    write_mlx_adapter(tmp_path / "mlx", ROOT / "adapters/llama_lm", fine_tune_type="full")
    with pytest.raises(ConfigError, match=r"fine_tune_type='full'.*mlx_lm\.fuse"):
        load_pretrained(BASE, adapter=tmp_path / "mlx")


def test_groups_of_mlx_lm_are_refused_with_the_command_that_writes_floats(tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "quantized")
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"mlx_lm\.convert --dequantize"):
        load_pretrained(folder)


@pytest.mark.parametrize("named", ["folder", "file"])
def test_a_gguf_is_refused_with_the_line_that_converts_it(named, tmp_path):
    file = tmp_path / "model.Q4_0.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"python -c .*gguf_file='model\.Q4_0\.gguf'"):
        load_pretrained(tmp_path if named == "folder" else file)


@pytest.mark.parametrize(
    "wrapped",
    [
        "_orig_mod.{}",  # torch.compile
        "module._orig_mod.{}",  # DDP around it
        "_fsdp_wrapped_module.{}",
        "pretrained_model.{}",  # TRL's model with a value head
    ],
)
def test_names_of_wrappers_are_read_as_those_within(wrapped, tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "wrapped")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {wrapped.format(name): x for name, x in tensors.items()}, folder / "model.safetensors"
    )
    np.testing.assert_array_equal(logits_of(folder), logits_of(BASE))


def test_wrappers_of_layers_are_read_as_the_layers(tmp_path):
    """As Axolotl saves layers whose activations are recomputed."""
    folder = shutil.copytree(BASE, tmp_path / "wrapped")
    wrapped = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        wrapped[name.replace("layers.0.", "layers.0._checkpoint_wrapped_module.")] = tensor
    save_file(wrapped, folder / "model.safetensors")
    np.testing.assert_array_equal(logits_of(folder), logits_of(BASE))


def test_a_value_head_is_left_out_with_a_notice(tmp_path, caplog):
    folder = shutil.copytree(BASE, tmp_path / "ppo")
    tensors = load_file(folder / "model.safetensors")
    tensors["v_head.summary.weight"] = np.ones((1, 8), np.float32)
    save_file(tensors, folder / "model.safetensors")
    np.testing.assert_array_equal(logits_of(folder), logits_of(BASE))
    assert "a value head of reinforcement learning is left out" in caplog.text


def test_a_tensor_that_is_there_twice_is_refused(tmp_path):
    folder = shutil.copytree(BASE, tmp_path / "twice")
    tensors = load_file(folder / "model.safetensors")
    tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"is a second model\.norm\.weight"):
        load_pretrained(folder)
