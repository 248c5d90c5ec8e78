"""Checkpoints of MaxText, whose layout was made from its source: MaxText itself was not run.

Orbax writes the arrays, which follow to_maxtext.py's steps for Llama (LLAMA31_... in
checkpoint_conversion/utils/param_mapping.py), for Gemma 2 (GEMMA2_...) and for Gemma
(standalone_scripts/convert_gemma_chkpt.py) from the tensors of a published model.
"""

import re
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax.traverse_util import unflatten_dict

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.pretrained.folder import open_weights
from flaxformer_lite.pretrained.foreign import maxtext
from flaxformer_lite.pretrained.safetensors import WeightsError

HEADS = 4
NAMES = {
    "embed_tokens": "token_embedder/embedding",
    "lm_head": "decoder/logits_dense/kernel",
    "model.norm": "decoder/decoder_norm/scale",
    "input_layernorm": "pre_self_attention_layer_norm/scale",
    "post_attention_layernorm": "post_self_attention_layer_norm/scale",
    "q_proj": "self_attention/query/kernel",
    "k_proj": "self_attention/key/kernel",
    "v_proj": "self_attention/value/kernel",
    "o_proj": "self_attention/out/kernel",
    "gate_proj": "mlp/wi_0/kernel",
    "up_proj": "mlp/wi_1/kernel",
    "down_proj": "mlp/wo/kernel",
}
SCALED = Rope(
    base=500000.0,
    scaling="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)


def maxtext_arrays(folder, *, interleaved, width=4):
    """Returns a published model's arrays by MaxText's paths, layers side by side."""
    arrays = {}
    for name, tensor in open_weights(folder).items():
        theirs = next(path for part, path in NAMES.items() if part in name)
        x = np.asarray(tensor.array)
        if x.ndim == 2 and "embed" not in name:
            x = x.T
        if re.search("[qkv]_proj", name):
            x = x.reshape(x.shape[0], -1, width)
        if re.search("[qk]_proj", name) and interleaved:
            x = np.stack([x[..., : width // 2], x[..., width // 2 :]], axis=-1).reshape(x.shape)
        if "q_proj" in name:
            x = x / np.float32(width**0.5)
        if "o_proj" in name:
            x = x.reshape(-1, width, x.shape[1])
        layer = re.search(r"layers\.(\d+)", name)
        arrays[f"decoder/layers_{layer[1]}/{theirs}" if layer else theirs] = x
    return arrays


def scan(arrays, axis):
    scanned = {path: x for path, x in arrays.items() if "layers_" not in path}
    for path in arrays:
        if "layers_0/" in path:
            stack = [arrays[path.replace("layers_0", f"layers_{i}")] for i in range(2)]
            scanned[path.replace("layers_0", "layers")] = np.stack(stack, axis=axis)
    return scanned


def write(folder, arrays, *, zarr3=True):
    tree = unflatten_dict({tuple(path.split("/")): x for path, x in arrays.items()})
    state = {"params": {"params": tree}, "opt_state": {"count": np.int32(3)}, "step": np.int32(3)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=zarr3)) as saver:
        saver.save(folder, state)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Saves a Llama of the two kinds of positions, with random parameters."""
    made = {}
    random = np.random.default_rng(0)
    for name, rope in (("llama3-8b", Rope(base=500000.0)), ("llama3.1-8b", SCALED)):
        sizes = dict(d_model=12, num_heads=HEADS, num_kv_heads=2, head_dim=4, mlp_dim=8)
        model = build_model(
            "llama", "tiny", vocab_size=16, decoder_layers=2, position=rope, **sizes
        )
        ids = np.ones((1, 4), int)
        shapes = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
        params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("f4"), shapes)
        made[name] = tmp_path_factory.mktemp("published") / name
        save_pretrained(made[name], model, params)
    return made


YML = "base_emb_dim: 12\nrope_max_timescale: 500_000  # theta\nmlp_activations: ['silu','linear']\n"


@pytest.mark.parametrize(
    ("name", "axis", "zarr3"),
    [("llama3-8b", 1, True), ("llama3.1-8b", None, False), ("llama3.1-8b", 0, True)],
)
def test_the_same_parameters_by_the_layout_in_its_source(models, name, axis, zarr3, tmp_path):
    model, params = load_pretrained(models[name])
    arrays = maxtext_arrays(models[name], interleaved=name == "llama3.1-8b")
    arrays = arrays if axis is None else scan(arrays, axis)
    write(tmp_path / "run/30/items", arrays, zarr3=zarr3)
    (tmp_path / "run" / f"{name}.yml").write_text(YML)
    theirs, read = load_pretrained(tmp_path / "run")
    assert theirs.cfg.position == model.cfg.position
    assert theirs.cfg.norm_eps == model.cfg.norm_eps
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), read, params)


GEMMA_NORMS = {
    "input_layernorm": "pre_self_attention_norm",
    "post_attention_layernorm": "post_self_attention_norm",
    "pre_feedforward_layernorm": "pre_ffw_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PADDING = 3  # rows of the table


def gemma_arrays(folder, *, pairs, width=4):
    """Returns a Gemma's arrays by MaxText's paths, layers side by side."""
    arrays = {}
    for name, tensor in open_weights(folder).items():
        x = np.asarray(tensor.array)
        number = int(re.search(r"layers\.(\d+)|$", name)[1] or 0)
        half = f"_{('local', 'global')[number % 2]}" if pairs else ""
        layer = f"decoder/layers_{number // 2 if pairs else number}"
        if "embed_tokens" in name:
            table = np.concatenate([x, np.zeros((PADDING, x.shape[1]), x.dtype)])
            arrays["token_embedder/embedding"] = table * np.float32(x.shape[1] ** 0.5)
        elif name == "model.norm.weight":
            arrays["decoder/decoder_norm/scale"] = x + 1
        elif "norm" in name:
            theirs = GEMMA_NORMS[name.split(".")[3]]
            if not pairs and theirs == "post_self_attention_norm":
                theirs = "pre_ffw_norm"
            arrays[f"{layer}/{theirs}{half}/scale"] = x + 1
        else:
            theirs = next(path for part, path in NAMES.items() if part in name)
            module, _, leaf = theirs.partition("/")
            x = x.T
            if re.search("[qkv]_proj", name):
                x = x.reshape(x.shape[0], -1, width)
            if "q_proj" in name:
                x = x / np.float32(width**0.5)
            if "o_proj" in name:
                x = x.reshape(-1, width, x.shape[1])
            arrays[f"{layer}/{module}{half}/{leaf}"] = x
    return arrays


GEMMA_YML = """base_emb_dim: 12
mlp_activations: ["gelu","linear"]
decoder_block: "BLOCK"
normalization_layer_epsilon: 1.e-06
logits_via_embedding: true
"""
GEMMA2_YML = """final_logits_soft_cap: 30.0
attn_logits_soft_cap: 50.0
sliding_window_size: 3
"""


@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_gemma_has_the_same_parameters_by_the_layout_in_its_source(family, tmp_path, capsys):
    sizes = dict(d_model=12, num_heads=HEADS, num_kv_heads=2, head_dim=4, mlp_dim=8)
    if family == "gemma2":
        sizes |= dict(attention_scale=0.5, windows=(3, 0))
    model = build_model(family, "tiny", vocab_size=16, decoder_layers=4, **sizes)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.ones((1, 4), int))["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("f4"), shapes)
    save_pretrained(tmp_path / "published", model, params)
    arrays = gemma_arrays(tmp_path / "published", pairs=family == "gemma2")
    write(tmp_path / "run/checkpoints/4/items", scan(arrays, 1) if family == "gemma2" else arrays)
    (tmp_path / "run/checkpoints/5").mkdir()
    yml = GEMMA_YML.replace("BLOCK", family) + (GEMMA2_YML if family == "gemma2" else "")
    (tmp_path / "run" / f"{family}-2b.yml").write_text(yml)
    main(["convert", str(tmp_path / "run"), str(tmp_path / "new")])
    assert "5 is newer, but no whole checkpoint: not read" in capsys.readouterr().err
    theirs, read = load_pretrained(tmp_path / "new")
    assert theirs.cfg.vocab_size == 16 + PADDING
    for field in ("position", "norm_eps", "scale", "kinds", "activation", "embed_power"):
        assert getattr(theirs.cfg, field) == getattr(model.cfg, field), field
    table = read["token_embed"]["embedding"]
    assert not table[16:].any()
    read["token_embed"]["embedding"] = table[:16]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6, rtol=1e-6), read, params)
    shutil.copy(tmp_path / "published/config.json", tmp_path / "run")
    _, again = load_pretrained(tmp_path / "run")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6, rtol=1e-6), again, params)


@pytest.fixture
def checkpoint(models, tmp_path):
    arrays = scan(maxtext_arrays(models["llama3-8b"], interleaved=False), 1)
    write(tmp_path / "items", arrays)
    (tmp_path / "llama3-8b.yml").write_text(YML)
    return tmp_path


def test_convert_says_what_it_found_and_what_it_assumed(checkpoint, tmp_path, capsys):
    main(["convert", str(checkpoint), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "MaxText: llama with 2 layers in a scanned stack, width 12, 4 heads of 4 (2" in said
    assert "assumed, as llama3-8b.yml does not say: decoder_block='llama2', rope_type" in said


def test_the_name_of_llama31_tells_its_positions(checkpoint):
    (checkpoint / "llama3-8b.yml").rename(checkpoint / "llama3.1-8b.yml")
    lines = maxtext.describe(maxtext.find(checkpoint))
    assert "the positions of Llama 3.1" in lines[0] and "rope_type" not in lines[1]


def test_a_config_of_transformers_takes_the_place_of_the_yml(checkpoint, models):
    (checkpoint / "llama3-8b.yml").unlink()
    with pytest.raises(WeightsError, match=r"does not hold its rotary positions; put the \.yml"):
        load_pretrained(checkpoint)
    shutil.copy(models["llama3-8b"] / "config.json", checkpoint)
    _, params = load_pretrained(models["llama3-8b"])
    _, read = load_pretrained(checkpoint)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), read, params)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("decoder_block: gemma2", "decoder_block='gemma2': llama2.*those of llama2 or mistral"),
        ("rope_type: yarn", "rope_type='yarn': is not read"),
        ("use_qk_norm: true", "use_qk_norm=True: only False"),
        ("logits_via_embedding: true", "logits_via_embedding=True, where its.* with decoder.logi"),
        ("quantization: int8", "quantization='int8'"),
        ("partial_rotary_factor: 0.5", "partial_rotary_factor=0.5: only 1.0"),
        ("rope_max_timescale: big", "rope_max_timescale='big': must be a number"),
    ],
)
def test_settings_that_change_numbers_are_refused(checkpoint, line, message):
    (checkpoint / "llama3-8b.yml").write_text(f"{YML}{line}\n")
    with pytest.raises(WeightsError, match=message):
        load_pretrained(checkpoint)


def test_a_missing_file_and_other_parameters_are_named(checkpoint, models, tmp_path):
    arrays = maxtext_arrays(models["llama3-8b"], interleaved=False)
    arrays["decoder/layers_0/mlp/router/kernel"] = np.ones((2, 2), "float32")
    write(tmp_path / "other/items", arrays)
    (tmp_path / "other/a.yml").write_text(YML)
    with pytest.raises(WeightsError, match=r"holds decoder\.layers_0\.mlp\.router\.kernel"):
        load_pretrained(tmp_path / "other")
    for data in (checkpoint / "items").glob("**/d/*"):
        data.unlink()
    with pytest.raises(WeightsError, match="missing or damaged"):
        jax.device_get(load_pretrained(checkpoint)[1])
