"""Saving beyond the same tensors under the same names, which test_parity.py compares: meshes,
shards, what goes along."""

import json

import jax
import numpy as np
import pytest

from flaxformer_lite import build_model, load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.nn.positions.rope import Rope
from flaxformer_lite.nn.positions.shaw import Shaw
from flaxformer_lite.pretrained.folder import open_weights
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.sharding.mesh import build_mesh
from tests.models.tiny import built, small
from tests.pretrained.fixtures import ROOT, loaded


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "t5"])
def test_onto_a_mesh_a_part_at_a_time(family, scan, tmp_path):
    """Fused by thirds, fused by heads, and not fused: what each device reads is its part of the
    whole."""
    turning = {"position": Rope(fraction=0.5), "head_dim": 4} if family == "gpt_neox" else {}
    model, params = built(small(family, vocab_size=64, **turning))
    save_pretrained(tmp_path, model, params)
    whole = load_pretrained(tmp_path, scan=scan)[1]
    mesh = build_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    placed = load_pretrained(tmp_path, scan=scan, mesh=mesh)[1]
    query = placed["decoder"]["layers" if scan else "layer_0"]
    query = (query["block_0"] if scan else query)["attention"]["query"]["kernel"]
    assert query.sharding.shard_shape(query.shape)[-3:] == (8, 2, query.shape[-1])
    jax.tree.map(np.testing.assert_array_equal, placed, whole)
    if not scan:
        jax.tree.map(np.testing.assert_array_equal, whole, params)


def test_a_vocabulary_that_a_mesh_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="token_embed/embedding"):
        load_pretrained(ROOT / "gpt2_lm", mesh=build_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))


def test_shards_with_an_index(tmp_path):
    model, params = loaded("bert_masked_lm")
    save_pretrained(tmp_path, model, params, shard_bytes=6000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == len(list(tmp_path.glob("*.safetensors"))) > 2
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(tmp_path)[1], params)


def test_an_untied_bias_is_written_by_both_of_its_names(tmp_path):
    for is_tied in (False, True):
        model, params = built(small("bert", tie_embeddings=is_tied))
        save_pretrained(tmp_path / str(is_tied), model, params)
        names = open_weights(tmp_path / str(is_tied))
        assert "cls.predictions.bias" in names
        assert ("cls.predictions.decoder.bias" in names) is not is_tied


def test_bfloat16_is_written_as_such(tmp_path):
    model, params = load_pretrained(ROOT / "gpt2_lm", dtype="bfloat16")
    save_pretrained(tmp_path, model, params)
    again, same = load_pretrained(tmp_path, dtype="bfloat16")
    assert again.cfg == model.cfg
    jax.tree.map(np.testing.assert_array_equal, params, same)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_tokenizer_and_labels_travel(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for path in (ROOT / "bert_sequence_classification").iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config |= {
        "id2label": {"0": "bad", "1": "fair", "2": "good"},
        "label2id": {"bad": 0, "fair": 1, "good": 2},
    }
    (source / "config.json").write_text(json.dumps(config))
    (source / "tokenizer.json").write_text("{}")
    model, params = load_pretrained(source)
    save_pretrained(tmp_path / "out", model, params)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"]["2"] == "good"
    (source / "config.json").write_text(json.dumps(config | {"id2label": None}))
    save_pretrained(tmp_path / "out", model, params)
    (source / "config.json").write_text(json.dumps(config | {"id2label": 3}))
    with pytest.raises(ConfigError, match="id2label=3: must be an object"):
        save_pretrained(tmp_path / "out", model, params)


def test_a_model_that_no_published_one_equals_is_refused(tmp_path):
    model, params = built(small("bert", position=Shaw(), head="none"))
    with pytest.raises(ConfigError, match="position=Shaw"):
        save_pretrained(tmp_path, model, params)
    model = build_model("transformer", "tiny", vocab_size=64)
    with pytest.raises(ConfigError, match="no published form"):
        save_pretrained(tmp_path, model, {})


def test_a_head_without_a_published_class_is_refused(tmp_path):
    model, params = built(small("bart", head="encoder"))
    with pytest.raises(
        ConfigError,
        match=r"head='encoder':.*no class.*choose",
    ):
        save_pretrained(tmp_path, model, params)


def test_params_of_another_model_are_refused(tmp_path):
    model, params = loaded("bert_masked_lm")
    with pytest.raises(WeightsError, match="params: encoder/layer_0"):
        save_pretrained(tmp_path, model, params | {"encoder": {}})
    with pytest.raises(WeightsError, match="params: pooler/dense/bias is not a parameter"):
        save_pretrained(tmp_path, model, params | {"pooler": {"dense": {"bias": np.zeros(3)}}})
