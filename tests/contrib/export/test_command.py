import sys

import jax
import numpy as np
import pytest

from flaxformer_lite import load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.export import run_export
from flaxformer_lite.contrib.export.folder import check_files
from tests.cli import models


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    head = "sequence_classification"
    return models.directory(tmp_path_factory.mktemp("bert"), "bert", head)


def test_a_file_is_written_beside_what_it_needs(bert, tmp_path, capsys, refusal):
    file = tmp_path / "exported" / "model.stablehlo"
    main(["export", "--model", str(bert), "--output", str(file)])
    said = capsys.readouterr().out
    assert f"{file}: encode, " in said and "largest difference" in said
    names = {path.name for path in file.parent.iterdir()}
    assert {"config.json", "test_cases.npz", "tokenizer.json"} <= names
    program = jax.export.deserialize(bytearray(file.read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    ids = np.asarray([load_tokenizer(bert).encode("one two three")], np.int32)
    inputs = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    model, params = load_pretrained(bert)
    due = jax.jit(model.apply)({"params": params}, **inputs).logits
    np.testing.assert_allclose(program.call(**inputs)["logits"], due, atol=1e-5)
    assert check_files(file)["encode"] < 1e-4
    with np.load(file.parent / "test_cases.npz") as arrays:
        cases = dict(arrays)
    cases["0/encode/output/logits"] += 1
    np.savez(file.parent / "test_cases.npz", **cases)
    with pytest.raises(ConfigError, match="encode differs by"):
        check_files(file)


def test_wrong_calls_are_refused(bert, tmp_path, monkeypatch, refusal):
    def told(output, *flags):
        return refusal("export", "--model", bert, "--output", tmp_path / output, *flags)

    (tmp_path / "README.md").write_text("mine")
    mine = told("model.onnx")
    assert "README.md" in mine and "exported/model.onnx" in mine
    assert (tmp_path / "README.md").read_text() == "mine"
    assert "must end in .onnx or .stablehlo" in told("x.pt")
    (tmp_path / "other").mkdir()
    for name in ("small.onnx", "test_cases.npz"):
        (tmp_path / "other" / name).touch()
    held = told("other/model.onnx")
    assert "holds small.onnx" in held and "other_model/model.onnx" in held
    # whose test cases may be of other weights
    assert "holds small.onnx" in told("other/small.stablehlo")
    replaced = ("small.onnx", "m.encode.onnx.data")
    assert not any(run_export._is_kept(name) for name in replaced)
    assert run_export._is_kept("notes.md") and run_export._is_kept("my.data")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert "flaxformer_lite[export]" in told("new/model.onnx")
    assert not (tmp_path / "new").exists()
