"""T5X checkpoints, laid out as t5x.checkpoints writes them, from the tensors of published models.

The layout was also compared with T5X's own modules: docs/migration.md.
"""

import re
import shutil
from pathlib import Path

import jax
import msgpack
import numpy as np
import pytest
import tensorstore
from flax import serialization
from flax.traverse_util import unflatten_dict

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.__main__ import main
from flaxformer_lite.contrib.t5x.readers import t5x
from flaxformer_lite.nn.mixers.local_global import LocalGlobalConfig
from flaxformer_lite.pretrained.folder import open_weights
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.marks import daily
from tests.pretrained.fixtures import ROOT

HEADS = ("query", "key", "value")
PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}
THEIRS = (  # of torch's names, in this order
    (r"^shared\.weight", "token_embedder/embedding"),
    (r"^lm_head\.weight", "decoder/logits_dense/kernel"),
    (r"^(en|de)coder\.final_layer_norm\.weight", r"\1coder/\1coder_norm/scale"),
    (r"^(\w+)\.block\.(\d+)\.layer\.", r"\1/layers_\2/"),
    (r"\.(q|k|v|o)\.weight", lambda match: f"/{PROJECTIONS[match[1]]}/kernel"),
    (r"encoder(/.*)0\.\w*SelfAttention", r"encoder\1attention"),
    (r"decoder(/.*)0\.SelfAttention", r"decoder\1self_attention"),
    (r"1\.EncDecAttention", "encoder_decoder_attention"),
    (r"\d\.DenseReluDense\.(\w+)\.weight", r"mlp/\1/kernel"),
    (r"encoder(/.*)0\.layer_norm\.weight", r"encoder\1pre_attention_layer_norm/scale"),
    (r"decoder(/.*)0\.layer_norm\.weight", r"decoder\1pre_self_attention_layer_norm/scale"),
    (r"decoder(/.*)1\.layer_norm\.weight", r"decoder\1pre_cross_attention_layer_norm/scale"),
    (r"\d\.layer_norm\.weight", "pre_mlp_layer_norm/scale"),
    (r"attention\.global_input_layer_norm\.weight", "attention/T5LayerNorm_0/scale"),
    (r"\w*attention\.relative_attention_bias\.weight", "relpos_bias/rel_embedding"),
    (r"\w*attention\.global_relative_attention_bias\.weight", "side_relpos_bias/rel_embedding"),
)


def t5x_arrays(folder, *, scanned, heads=0):
    """Returns a published model's arrays by T5X's names; with `heads`, kernels have their axis."""
    arrays = {}
    for name, tensor in open_weights(folder).items():
        if name.endswith("embed_tokens.weight") or "EncDecAttention.relative" in name:
            continue
        for pattern, theirs in THEIRS:
            name = re.sub(pattern, theirs, name)
        x = np.asarray(tensor.array)
        x = x if name.endswith(("scale", "embedder/embedding")) else x.T
        if heads and name.split("/")[-2] in HEADS:
            x = x.reshape(x.shape[0], heads, -1)
        elif heads and name.endswith("out/kernel"):
            x = x.reshape(heads, -1, x.shape[1])
        arrays[name] = x
    per_layer = any("layers_1/relpos_bias" in name for name in arrays)
    stacks = {}
    for name in list(arrays):
        if "relpos_bias" in name and not per_layer:  # one table for all layers stands outside them
            arrays[name.replace("layers_0/", "")] = arrays.pop(name)
        elif scanned and "/layers_" in name:
            side, layer, rest = re.fullmatch(r"(\w+)/layers_(\d+)/(.+)", name).groups()
            stacks.setdefault(f"{side}/{side}/{rest}", {})[int(layer)] = arrays.pop(name)
    for name, layers in stacks.items():
        arrays[name] = np.stack([layers[i] for i in range(len(layers))], axis=1)
    return arrays


def write(folder, arrays):
    """Writes a checkpoint: references in msgpack, arrays in zarr folders, the norms inside."""
    folder.mkdir(parents=True)
    tree = {}
    for name, x in arrays.items():
        if name.endswith("_norm/scale") and x.ndim == 1:
            tree[name] = x
            continue
        chunks = [-(-n // 2) for n in x.shape]
        metadata = {"compressor": {"id": "gzip"}, "shape": list(x.shape), "chunks": chunks}
        spec = {"driver": "zarr", "dtype": x.dtype.name, "metadata": metadata}
        place = f"target.{name.replace('/', '.')}"
        tree[name] = spec | {"kvstore": {"driver": "file", "path": f"{place}/"}}
        spec["kvstore"] = {"driver": "file", "path": f"{folder / place}/"}
        tensorstore.open(spec, create=True, open=True).result().write(x).result()
    state = {"step": np.int32(1000), "param_states": {}}
    optimizer = {"target": unflatten_dict(tree, sep="/"), "state": state}
    content = serialization.msgpack_serialize({"version": 3, "optimizer": optimizer})
    (folder / "checkpoint").write_bytes(content)
    return folder


PUBLISHED = [
    ("t5_conditional_generation", {"scanned": False}, "t5"),
    ("umt5_conditional_generation", {"scanned": True, "heads": 4}, "umt5"),
    ("t5_v1_1_conditional_generation", {"scanned": True}, "t5"),
    ("mt5_conditional_generation", {"scanned": False}, "t5"),  # mT5 is known by its vocabulary
    ("umt5_conditional_generation", {"scanned": False}, "umt5"),
]


@pytest.mark.parametrize(("name", "layout", "family"), daily(PUBLISHED, PUBLISHED[:2]))
def test_the_same_parameters_as_published(name, layout, family, tmp_path):
    model, params = load_pretrained(ROOT / name)
    write(tmp_path / "checkpoint_900", {"token_embedder/embedding": np.zeros((2, 2), "float32")})
    write(tmp_path / "checkpoint_1000", t5x_arrays(ROOT / name, **layout))
    theirs, read = load_pretrained(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, read, params)
    for field in ("encoder_layers", "decoder_layers", "head_dim", "mlp", "tie_embeddings"):
        assert getattr(theirs.cfg, field) == getattr(model.cfg, field)
    assert theirs.cfg.family == family
    assert theirs.cfg.position.num_buckets == model.cfg.position.num_buckets


@pytest.mark.parametrize("sums", [True, False])
def test_longt5(sums, tmp_path):
    sizes = dict(d_model=8, num_heads=2, head_dim=4, mlp_dim=8, encoder_layers=2, decoder_layers=1)
    mixer = LocalGlobalConfig(radius=3, global_block=4 if sums else 0)
    model = build_model("longt5", "tiny", vocab_size=16, **sizes, mixer=mixer)
    ids = np.ones((1, 4), int)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids, decoder_input_ids=ids)["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype("float32"), shapes)
    save_pretrained(tmp_path / "published", model, params)
    write(tmp_path / "run/checkpoint_5", t5x_arrays(tmp_path / "published", scanned=False))
    (tmp_path / "run/config.gin").write_text(
        "LOCAL_RADIUS = 3\nTOKENS_PER_BLOCK = 4\n"
        "attention = @long_attention.EncoderLocalSelfAttention()\n"
        "dense.MlpBlock:\n  activations = ('gelu', 'linear')\n"
    )
    theirs, read = load_pretrained(tmp_path / "run")
    assert theirs.cfg.mixer == model.cfg.mixer
    jax.tree.map(np.testing.assert_array_equal, read, params)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    arrays = t5x_arrays(ROOT / "t5_v1_1_conditional_generation", scanned=False)
    return write(tmp_path_factory.mktemp("t5x") / "checkpoint_1000", arrays)


@pytest.fixture
def checkpoint(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "checkpoint_1000"))


def test_a_text_named_target_makes_no_checkpoint(tmp_path):
    (tmp_path / "target.txt").write_text("Guten Tag")
    (tmp_path / "target.de").mkdir()
    assert t5x.find(tmp_path) is None


def test_convert_says_what_it_found_and_inspect_reads_the_same(whole, tmp_path, capsys):
    main(["convert", str(whole), str(tmp_path / "out")])
    assert re.search(r"T5X, step 1,000: t5 with \d \+ \d layers", capsys.readouterr().err)
    sums = []
    for folder in (whole, tmp_path / "out"):
        main(["inspect", str(folder)])
        sums.append(re.search(r"^sha256 +(\w{64})$", capsys.readouterr().out, re.M)[1])
    assert sums[0] == sums[1]


def test_a_gin_file_names_the_activation(checkpoint):
    gin = checkpoint.parent / "config.gin"
    gin.write_text("network.T5Config:\n  mlp_activations = ('swish', 'linear')\n")
    assert load_pretrained(checkpoint)[0].cfg.activation == "silu"
    gin.write_text("dense.MlpBlock.activations = ('tanh', 'linear')\n")
    with pytest.raises(WeightsError, match=r"activations.*tanh.*gelu, relu"):
        load_pretrained(checkpoint)


KERNEL = "target.decoder.layers_0.mlp.wo.kernel"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "checkpoint").unlink(), "checkpoint: missing.*fetch the whole folder"),
        (lambda f: (f / "checkpoint").write_bytes(b"\x82\xa7ver"), "or truncated"),
        (lambda f: (f / "checkpoint").write_bytes(msgpack.packb({"a": 1})), "holds no target"),
        (lambda f: shutil.rmtree(f / KERNEL), "wo.kernel: missing.*fetch the whole folder"),
        (lambda f: (f / KERNEL / "0.0").unlink(), "wo.kernel: a file.*is missing or damaged"),
        (lambda f: (f / KERNEL / "0.0").write_bytes(b"no"), "wo.kernel: a file.*or damaged"),
        (lambda f: (f / KERNEL / ".zarray").write_text("{}"), "wo.kernel is missing or damaged"),
    ],
)
def test_damage_is_one_sentence(checkpoint, damage, message):
    damage(checkpoint)
    with pytest.raises(WeightsError, match=message):
        jax.device_get(load_pretrained(checkpoint)[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("decoder/layers_0/mlp/router/w", "holds decoder/layers_0/mlp/router/w, which no T5 has"),
        ("../../else", "no name of an array"),
        ("encoder/layers_0/mlp/step", "dtype int32; must be one of"),
    ],
)
def test_other_models_are_refused(checkpoint, name, message):
    tree = serialization.msgpack_restore((checkpoint / "checkpoint").read_bytes())
    array = np.zeros((2, 2), "int32" if name.endswith("step") else "float32")
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": "/etc/"}}
    tree["optimizer"]["target"][name] = spec if ".." in name else array
    (checkpoint / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    with pytest.raises(WeightsError, match=message):
        load_pretrained(checkpoint)


def test_parameters_of_another_architecture_are_refused(tmp_path):
    write(tmp_path / "checkpoint_5", {"tower/kernel": np.ones((2, 2), "float32")})
    with pytest.raises(WeightsError, match=r"parameters are \['tower'\]; encoder-decoders"):
        load_pretrained(tmp_path)
