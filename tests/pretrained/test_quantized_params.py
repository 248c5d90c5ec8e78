"""Published weights whose matrices are held in few bits, those of experts among them."""

import jax
import numpy as np
import pytest

from flaxformer_lite import load_pretrained
from flaxformer_lite.nn.adapters.merge import dequantize_params
from tests.pretrained import recipe
from tests.pretrained.test_families import FAMILIES, write_files

# 4 bits need a multiple of 4 inputs; the stored files have heads of 6 numbers.
CASES = {
    "mixtral": {"head_dim": 8},
    "gpt_oss": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8},
    "deepseek_v3": {"qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 12, "kv_lora_rank": 12},
}


def logits(model, params, inputs):
    apply = jax.jit(lambda params: model.apply({"params": params}, **inputs).logits)
    return np.asarray(apply(params))


@pytest.mark.parametrize(
    ("name", "form", "scan"),
    [
        pytest.param("mixtral", "nf4", True, marks=pytest.mark.nightly),
        ("deepseek_v3", "int4", False),
        pytest.param("mixtral", "int8", False, marks=pytest.mark.nightly),
        pytest.param("gpt_oss", "int4", True, marks=pytest.mark.nightly),
        pytest.param("qwen3_moe", "nf4", False, marks=pytest.mark.nightly),
        pytest.param("deepseek_v3", "int8", True, marks=pytest.mark.nightly),
    ],
)
def test_a_model_computes_what_its_restored_matrices_do(name, form, scan, tmp_path):
    source = tmp_path / "source"
    write_files(FAMILIES[name]["config"] | CASES[name], source)
    model, params = load_pretrained(source, quantize=form, scan=scan)
    cfg = model.cfg
    inputs = recipe.inputs(cfg.vocab_size, cfg.pad_token_id)
    got = logits(model, params, inputs)
    due = logits(*dequantize_params(model, params), inputs)
    np.testing.assert_allclose(got, due, rtol=0, atol=1e-5 * np.abs(due).max())
    exact = logits(*load_pretrained(source), inputs)
    distance = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    assert 1e-3 < distance < (0.05 if form == "int8" else 0.5)
    codes = jax.tree_util.tree_leaves_with_path(params)
    experts = [leaf for keys, leaf in codes if "experts" in str(keys) and "codes" in str(keys)]
    assert {leaf.dtype for leaf in experts} == {np.dtype("int8" if form == "int8" else "uint8")}
