"""Checkpoints of levanter, with the names, shapes and numbers of levanter itself.

tools/foreign_levanter.py stored them. Arrays are written as tree_serialize_leaves_tensorstore does
it, by jax's serialization of arrays; where settings matter alone, with the axes of levanter's
layers from published models.
"""

import json
import re
import shutil
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.pretrained.folder import open_weights
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.marks import daily

STORED = json.loads((Path(__file__).parent / "levanter.json").read_text())
IDS = jnp.array([[5, 3, 8, 2, 9, 7], [4, 14, 11, 1, 6, 6]])
LLAMA3_YAML = """
model:
  type: llama
  tie_word_embeddings: true
  rope: {type: llama3, factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0,
    original_max_position_embeddings: 8}
"""
ENDS = {
    "model.embed_tokens.weight": "embeddings/token_embeddings/weight",
    "model.norm.weight": "transformer/norm/weight",
    "lm_head.weight": "lm_head/weight",
}


def llama_axes(name, x, heads, groups, width):
    if "q_proj" in name:
        return x.reshape(heads // groups, groups, width, x.shape[1])
    if re.search("[kv]_proj", name):
        return x.reshape(-1, width, x.shape[1])
    return x.reshape(x.shape[0], heads, width) if "o_proj" in name else x


def levanter_arrays(folder, axes, *, stacked=True):
    """Returns a published model's arrays by levanter's paths."""
    arrays = {}
    layers = {}
    for name, tensor in open_weights(folder).items():
        x = np.asarray(tensor.array)
        match = re.search(r"\.layers\.(\d+)\.(.+)", name)
        if not match:
            arrays[ENDS[name]] = x
            continue
        inner = match[2].replace(".", "/")
        layers.setdefault(inner, {})[int(match[1])] = axes(inner, x)
    stack = "transformer/layers"
    for inner, each in layers.items():
        if stacked:
            arrays[f"{stack}/stacked/{inner}"] = np.stack([each[i] for i in range(len(each))])
        else:
            arrays |= {f"{stack}/blocks/{i}/{inner}": x for i, x in each.items()}
    return arrays


def write(folder, arrays):
    for path, x in {f"model/{path}": x for path, x in arrays.items()}.items():
        spec = {
            "driver": "zarr",
            "dtype": x.dtype.name,
            "kvstore": {"driver": "file", "path": f"{folder / path}/"},
            "metadata": {"compressor": {"id": "zstd"}, "shape": x.shape, "chunks": x.shape},
        }
        tensorstore.open(spec, create=True, open=True).result().write(x).result()
    metadata = {"step": 30, "timestamp": "2026-11-24T10:00:00", "is_temporary": False}
    (folder / "metadata.json").write_text(json.dumps(metadata))


def values(name, shape):
    """Draws an array from its name, as tools/foreign_levanter.py does."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


STORED_CASES = ["llama", "llama_unstacked", "llama3_tied", "gpt2"]


@pytest.mark.parametrize("name", daily(STORED_CASES, ("llama3_tied", "gpt2")))
def test_logits_are_those_of_levanter(name, tmp_path):
    arrays = {}
    for path, shape in STORED[name]["arrays"].items():
        x = values(path, tuple(shape)) if not path.endswith("inference") else np.array(False)
        arrays[path.removeprefix("model/")] = x
    write(tmp_path / "step-3", arrays)
    if name != "gpt2":
        (tmp_path / "config.yaml").write_text(LLAMA3_YAML if name == "llama3_tied" else YAML)
    model, params = load_pretrained(tmp_path)
    logits = jax.jit(model.apply)({"params": params}, IDS).logits
    expected = np.array(STORED[name]["logits"])
    np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Saves a Llama with grouped heads, with random parameters."""
    sizes = dict(d_model=12, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=8, decoder_layers=2)
    rope = Rope(base=400000.0)
    model = build_model("llama", "tiny", vocab_size=16, position=rope, **sizes, max_length=64)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.ones((1, 4), int))["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("f4"), shapes)
    folder = tmp_path_factory.mktemp("published") / "llama"
    save_pretrained(folder, model, params)
    return folder


def axes(name, x):
    return llama_axes(name, x, heads=4, groups=2, width=4)


YAML = """
trainer: {num_train_steps: 30}
model:
  type: llama
  seq_len: 64
  num_heads: 4
  layer_norm_epsilon: 1e-5
  rope: {type: default, theta: 400000}
"""


@pytest.fixture
def run(published, tmp_path):
    write(tmp_path / "run/step-4", levanter_arrays(published, axes))
    write(tmp_path / "run/step-30", levanter_arrays(published, axes))
    (tmp_path / "run/config.yaml").write_text(YAML)
    return tmp_path / "run"


@pytest.mark.parametrize("stacked", [True, False])
def test_llama_has_the_same_parameters_by_the_layout_in_its_source(published, stacked, tmp_path):
    model, params = load_pretrained(published)
    write(tmp_path / "step-30", levanter_arrays(published, axes, stacked=stacked))
    (tmp_path / "config.yaml").write_text(YAML)
    theirs, read = load_pretrained(tmp_path)
    for field in ("position", "norm_eps", "num_heads", "kv_heads", "max_length", "mlp_dim"):
        assert getattr(theirs.cfg, field) == getattr(model.cfg, field)
    jax.tree.map(np.testing.assert_array_equal, read, params)


def test_convert_says_what_it_found_and_what_it_assumed(run, tmp_path, capsys):
    main(["convert", str(run), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "step-30: a checkpoint of levanter: llama with 2 layers, width 12, 4 heads" in said
    assert "assumed, as config.yaml does not say: activation_function='silu'" in said


def test_layers_that_are_there_twice_are_refused(run, published):
    """A run wrote its step anew, with its layers side by side."""
    write(run / "step-30", levanter_arrays(published, axes, stacked=False))
    with pytest.raises(WeightsError, match=r"a second array for model\.layers\.0"):
        load_pretrained(run)


def test_a_step_that_is_not_whole_is_noticed(run, published, tmp_path, capsys):
    write(run / "step-50", levanter_arrays(published, axes))
    (run / "step-50/metadata.json").unlink()
    main(["convert", str(run), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "step-30: a checkpoint of levanter" in said
    assert "step-50 is newer, but not whole, without metadata.json: not read" in said


def test_a_config_of_transformers_takes_the_place_of_the_yaml(run, published):
    (run / "config.yaml").unlink()
    with pytest.raises(WeightsError, match="does not hold its rotary positions; put the yaml"):
        load_pretrained(run)
    shutil.copy(published / "config.json", run)
    assert load_pretrained(run)[0].cfg.position.base == 400000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  hybrid_norm: true", "model.hybrid_norm=True: only False is read"),
        ("  qk_norm: {eps: 1.0}", "model.qk_norm=.*is not known here"),
        ("  rope: {type: yarn}", "model.rope=.*default and llama3 are read"),
        ("  type: olmo", "model.type='olmo': llama is read"),
        ("  tie_word_embeddings: true", "tie_word_embeddings=True, where its.* with lm_head"),
        ("  rope: [", "not a yaml file"),
        ("  rope: &x {a: 1}\nother: *x", "not a yaml file .it has aliases"),
    ],
)
def test_settings_that_change_numbers_are_refused(run, line, message):
    (run / "config.yaml").write_text(f"{YAML}{line}\n")
    with pytest.raises(WeightsError, match=message):
        load_pretrained(run)


def test_missing_files_and_other_parameters_are_named(run):
    layers = run / "step-30/model/transformer/layers/stacked"
    chunk = next(layers.glob("mlp/up_proj/weight/0*"))
    chunk.unlink()
    with pytest.raises(WeightsError, match=r"up_proj/weight: a file of the array is missing"):
        jax.device_get(load_pretrained(run)[1])
    shutil.rmtree(layers / "mlp/up_proj")
    with pytest.raises(WeightsError, match=r"no tensor layers\.0\.mlp\.up_proj\.weight"):
        load_pretrained(run)
    shutil.copytree(layers / "mlp/gate_proj", layers / "mlp/lora_A")
    with pytest.raises(WeightsError, match=r"holds .*mlp/lora_A/weight of shape"):
        load_pretrained(run)
    shutil.rmtree(run / "step-30/model/lm_head")
    with pytest.raises(WeightsError, match=r"tie_word_embeddings=False, where its.* without lm_"):
        load_pretrained(run)
