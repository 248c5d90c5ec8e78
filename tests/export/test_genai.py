"""What genai_config.json says of a decoder."""

import pytest

from flaxformer_lite.export.genai import genai_config
from flaxformer_lite.export.programs import programs_of
from tests.models.tiny import built, small


def test_it_names_the_inputs_and_sizes_of_the_file():
    model, _ = built(small("llama", 2, num_kv_heads=2))
    (program,) = programs_of(model)
    model_part = genai_config("model.onnx", program, model.cfg, {"eos": 3})["model"]
    assert [model_part[f"{role}_token_id"] for role in ("bos", "eos", "pad")] == [3, 3, 3]
    decoder = model_part["decoder"]
    names = {decoder["inputs"]["input_ids"], decoder["inputs"]["attention_mask"]}
    outputs = {decoder["outputs"]["logits"]}
    for layer in range(decoder["num_hidden_layers"]):
        for kind in ("key", "value"):
            names.add(decoder["inputs"][f"past_{kind}_names"] % layer)
            outputs.add(decoder["outputs"][f"present_{kind}_names"] % layer)
    assert names == set(program.inputs)
    assert outputs == set(program.outputs)
    shape = program.inputs["past_key_values.0.key"].shape
    assert (decoder["num_key_value_heads"], decoder["head_size"]) == (shape[1], shape[3])


@pytest.mark.nightly
def test_caches_of_different_sizes_have_none():
    model, _ = built(small("deepseek_v3", 1))
    (program,) = programs_of(model)
    assert genai_config("model.onnx", program, model.cfg, {}) is None
