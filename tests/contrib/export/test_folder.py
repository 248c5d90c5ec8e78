"""Folders of an export: models that were held in other ways, and the check of their files."""

import dataclasses

import jax
import numpy as np
import pytest

from flaxformer_lite import ConfigError
from flaxformer_lite.contrib.export import folder
from flaxformer_lite.contrib.export.cases import Case, load_cases, save_cases
from flaxformer_lite.nn.adapters.merge import merge_adapter
from tests.models.tiny import built, small


def test_a_model_in_few_bits_scanned_in_bfloat16_leaves_in_float32(tmp_path):
    fields = {"dtype": "bfloat16", "cache": "int8", "quantize": "int8"}
    model, params = built(small("gpt2", 1, scan=True, **fields))
    rows = [[3] * 16, [4, 5]]  # as many tokens as the model has positions for
    folder.export_model(tmp_path / "m.stablehlo", model, params, rows=rows)
    cases = load_cases(tmp_path / "test_cases.npz")
    assert all(np.isfinite(case.outputs["logits"]).all() for case in cases)
    plain, params = merge_adapter(model, params)
    plain = plain.clone(cfg=dataclasses.replace(plain.cfg, dtype="float32"))
    case = cases[0]
    inputs = {name: case.inputs[name] for name in ("input_ids", "attention_mask")}
    due = jax.jit(lambda params: plain.apply({"params": params}, **inputs).logits)(params)
    is_real = inputs["attention_mask"] != 0
    np.testing.assert_allclose(case.outputs["logits"][is_real], due[is_real], atol=1e-5)
    assert {str(array.dtype) for array in case.inputs.values()} == {"int32", "float32"}


def test_what_cannot_be_written_is_refused(tmp_path):
    model, params = built(small("gpt2", 1))
    for arguments, said in (
        ({"rows": [[]]}, "at least one"),
        ({"weights": "int4"}, "must be float32, float16, int8"),
    ):
        with pytest.raises(ConfigError, match=said):
            folder.export_model(tmp_path / "m.stablehlo", model, params, **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["m.onnx", "m.encode.onnx", "m.decode.onnx"])
def test_one_file_of_a_pair_stands_for_both(tmp_path, monkeypatch, name):
    case = Case("encode", {"input_ids": np.ones((1, 2))}, {"x": np.ones(3)})
    save_cases(tmp_path / folder.CASES, [case, case._replace(program="decode")])

    def opened(files):
        assert {path.name for path in files.values()} == {"m.encode.onnx", "m.decode.onnx"}
        return lambda program, inputs: case.outputs

    monkeypatch.setattr(folder, "open_files", opened)
    assert folder.check_files(tmp_path / name) == {"encode": 0, "decode": 0}
