"""flaxformer's architectures in checkpoints of T5X, with the numbers of flaxformer itself.

tools/flaxformer_numbers.py stored them; here each array is written into a checkpoint by its name,
as t5x.checkpoints does it.
"""

import json
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import serialization
from flax.traverse_util import unflatten_dict

from flaxformer_lite import load_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.marks import daily

STORED = json.loads((Path(__file__).parent / "flaxformer.json").read_text())
IDS = jnp.array([[5, 3, 8, 2, 9, 7], [4, 4, 21, 11, 0, 0]])
TARGETS = jnp.array([[0, 6, 3, 17], [0, 9, 2, 5]])
BOTH = dict(input_ids=IDS, attention_mask=IDS > 0, decoder_input_ids=TARGETS)
LOCAL_GIN = "LOCAL_RADIUS = 2\nf = @long_attention.EncoderLocalSelfAttention\n"
ENCODER = dict(input_ids=IDS, attention_mask=IDS > 0)
CASES = {
    **dict.fromkeys(("t5_1_1", "t5_tied", "t5_scanned", "t5_fused", "switch"), (BOTH, "")),
    "t5_encoder": (ENCODER, ""),
    "longt5_local": (BOTH, LOCAL_GIN),
    "longt5_global": (BOTH, "LOCAL_RADIUS = 2\nTOKENS_PER_BLOCK = 2\n"),
}
DAILY = ["t5_fused", "switch"]


def values(name, shape):
    """Draws an array from its name, as tools/flaxformer_numbers.py does."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


def arrays(name):
    return {path: values(path, shape) for path, shape in STORED[name]["arrays"].items()}


def write(folder, given, gin=""):
    """Writes a checkpoint with all arrays in its tree, as T5X does for small ones."""
    folder.mkdir()
    target = unflatten_dict(given, sep="/")
    tree = {"version": 3, "optimizer": {"target": target, "state": {"step": np.int32(3)}}}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    if gin:
        (folder / "config.gin").write_text(gin)
    return folder


@pytest.mark.parametrize("name", daily(list(CASES), DAILY))
def test_outputs_are_those_of_flaxformer(name, tmp_path):
    inputs, gin = CASES[name]
    folder = write(tmp_path / "checkpoint_3", arrays(name), gin)
    model, params = load_pretrained(folder)
    output = jax.jit(model.apply)({"params": params}, **inputs)
    ours = np.array(output.last_hidden_state if inputs is ENCODER else output.logits)
    (theirs,) = map(np.array, STORED[name]["outputs"])
    if ours.shape[:2] == IDS.shape:
        ours = ours[IDS > 0]
        theirs = theirs[IDS > 0]
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * max(1, np.abs(theirs).max()))


def test_convert_says_what_it_found_and_what_it_assumed(tmp_path, capsys):
    folder = write(tmp_path / "checkpoint_3", arrays("switch"))
    (tmp_path / "checkpoint_20/state").mkdir(parents=True)
    main(["convert", str(tmp_path), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "checkpoint_20 is newer, but no whole checkpoint: not read" in said
    assert "T5X, step 3: switch_transformers with 4 + 2 layers, width 8, 2 heads of 6" in said
    assert "(relu), 4 experts, vocabulary 40" in said
    assert "assumed, as there is no gin file: feed_forward_proj='relu'" in said
    assert "each token goes to one expert, which takes 64 tokens of a row" in said
    _, expected = load_pretrained(folder)
    _, read = load_pretrained(tmp_path / "out")
    jax.tree.map(np.testing.assert_array_equal, read, expected)


def test_a_stack_scanned_on_its_first_axis_is_read_the_same(tmp_path):
    given = arrays("t5_fused")
    for path, x in given.items():
        if path.startswith(("encoder/encoder/", "decoder/decoder/")):
            given[path] = np.moveaxis(x, 1, 0)
    _, read = load_pretrained(write(tmp_path / "first", given))
    _, expected = load_pretrained(write(tmp_path / "second", arrays("t5_fused")))
    jax.tree.map(np.testing.assert_array_equal, read, expected)


def with_placeholders(tree, above=""):
    """Returns the tree that older versions of Orbax wrote in msgpack."""
    if isinstance(tree, dict):
        return {key: with_placeholders(x, f"{above}.{key}") for key, x in tree.items()}
    return f"PLACEHOLDER://{above[1:]}"


@pytest.mark.parametrize(("merged", "old"), [(True, False), (False, False), (True, True)])
def test_checkpoints_that_t5x_writes_by_orbax_are_read_the_same(merged, old, tmp_path):
    target = unflatten_dict(arrays("t5_scanned"), sep="/")
    tree = {"target": target, "state": {"step": np.int32(3), "param_states": {}}}
    state = tmp_path / "run/checkpoint_30/state"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=merged)) as saver:
        saver.save(state, tree)
    if old:
        (state / "_METADATA").unlink()
        structure = serialization.msgpack_serialize(with_placeholders(tree))
        (state / "checkpoint").write_bytes(structure)
    write(tmp_path / "run/checkpoint_3", arrays("t5_1_1"))
    _, read = load_pretrained(tmp_path / "run")
    _, expected = load_pretrained(write(tmp_path / "other", arrays("t5_scanned")))
    jax.tree.map(np.testing.assert_array_equal, read, expected)


def test_versions_of_modules_are_no_parameters(tmp_path):
    version = "__save_format_metadata__/__version__"
    given = arrays("t5_1_1") | {f"decoder/{version}": 0, version: np.int32(0)}
    load_pretrained(write(tmp_path / "checkpoint_3", given))
    given[f"encoder/{version}"] = 1
    with pytest.raises(WeightsError, match="__version__ is 1, which is not an array"):
        load_pretrained(write(tmp_path / "checkpoint_4", given))


def test_what_a_gin_file_only_mentions_is_not_set(tmp_path):
    gin = "# rescale_logits = True\n  # max_distance = 64, not 128\nB.max_distance = 128\n"
    folder = write(tmp_path / "checkpoint_3", arrays("t5_1_1"), gin)
    _, read = load_pretrained(folder)
    (folder / "config.gin").unlink()
    _, expected = load_pretrained(folder)
    jax.tree.map(np.testing.assert_array_equal, read, expected)


EXPERTS = "encoder/layers_1/mlp/expert"
BELOW = "encoder/layers_0/mlp/expert"
SCANNED = "encoder/encoder/mlp/wo/kernel"
MOVED = {
    f"{EXPERTS}/wi/kernel": None,
    f"{EXPERTS}/wo/kernel": None,
    f"{BELOW}/wi/kernel": (4, 8, 12),
    f"{BELOW}/wo/kernel": (4, 12, 8),
}


@pytest.mark.parametrize(
    ("name", "change", "message"),  # shapes of arrays by path, None to take one away
    [
        ("t5_1_1", {"encoder/token_embedder/embedding": (40, 8)}, "a table of tokens for each"),
        ("t5_1_1", {"decoder/position_embedder/pos_embedding": (9, 8)}, "absolute positions"),
        ("t5_1_1", {"encoder/layers_0/layer_norm/scale": (8,)}, "in parallel"),
        ("t5_1_1", {"encoder/layers_0/mlp/wo/bias": (8,)}, r"with biases \(encoder"),
        ("t5_1_1", {"encoder/layers_0/conv/kernel": (8, 8)}, "holds encoder/layers_0/conv"),
        ("t5_1_1", {"token_embedder/embedding": None}, "without token_embedder/embedding"),
        ("t5_1_1", {"decoder/layers_1/mlp/wi_1/kernel": None}, "no tensor"),
        ("t5_scanned", {SCANNED: (12, 3, 8)}, "without the 2 layers"),
        ("t5_scanned", {SCANNED: (12,)}, "without the 2 layers"),
        ("t5_fused", {"encoder/encoder/mlp/wi_fused/kernel": (8, 2, 3, 12)}, "not a kernel of"),
        ("switch", {"encoder/layers_1/extra_mlp/wi/kernel": (8, 12)}, "ST-MoE's second"),
        ("switch", {f"{EXPERTS}/wi_0/kernel": (4, 8, 12)}, "gated"),
        ("switch", {f"{EXPERTS}/wi/kernel": (3, 8, 12)}, r"with \[3, 4\] experts"),
        ("switch", MOVED, r"experts in the encoder's layers \[0, 3\], where"),
        ("switch_scanned", {}, "relative positions in each layer"),
        ("t5_1_1", {"encoder/relpos_bias/rel_embedding": (0, 8)}, "without entries: damaged"),
        ("t5_1_1", {"token_embedder/embedding": (40,)}, r"token_embedder/embedding is \(40,\)"),
    ],
)
def test_what_no_class_of_transformers_computes_is_refused(name, change, message, tmp_path):
    given = arrays(name)
    for path, shape in change.items():
        given.pop(path, None)
        if shape:
            given[path] = np.zeros(shape, "float32")
    with pytest.raises(WeightsError, match=message):
        load_pretrained(write(tmp_path / "checkpoint_3", given))


@pytest.mark.parametrize(
    ("name", "gin", "message"),
    [
        ("switch", "NUM_SELECTED_EXPERTS = 2", "num_selected_experts=2"),
        ("switch", "router = @routing.ExpertsChooseMaskedRouter()", "ExpertsChooseMaskedRouter"),
        ("t5_1_1", "layer_norm.T5LayerNorm.center_scale_at_zero = True", "center_scale_at_zero"),
        ("t5_1_1", "a.use_rotary_embedding = True", "use_rotary_embedding=True: not read"),
        ("t5_1_1", "a.rescale_logits = True\nb.rescale_logits = False", "to True and to False"),
        ("t5_1_1", "a.max_distance = 128\nb.max_distance = 64", "max_distance to"),
        ("switch", "a.activations = ('gelu',)\nb.activations = ('relu',)", "activations"),
    ],
)
def test_settings_that_change_numbers_are_refused(name, gin, message, tmp_path):
    with pytest.raises(WeightsError, match=message):
        load_pretrained(write(tmp_path / "checkpoint_3", arrays(name), gin))


def test_a_config_that_leaves_fields_out_has_the_last_word(tmp_path, capsys):
    folder = write(tmp_path / "checkpoint_3", arrays("t5_encoder"))
    config = dict(model_type="t5", architectures=["T5EncoderModel"], vocab_size=40, d_model=8)
    config |= dict(num_layers=2, num_heads=2, d_kv=6, d_ff=12, feed_forward_proj="gated-silu")
    config["relative_attention_num_buckets"] = 8
    (folder / "config.json").write_text(json.dumps(config))
    main(["convert", str(folder), str(tmp_path / "out")])
    assert "config.json has the last word" in capsys.readouterr().err
    assert load_pretrained(tmp_path / "out")[0].cfg.activation == "silu"
