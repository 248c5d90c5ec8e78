"""Doctored checkpoints, and what each is told; nothing loads half."""

import json
import struct

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_labels, load_pretrained, load_tokenizer, save_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.sharding.mesh import build_mesh
from tests.pretrained.fixtures import ROOT


@pytest.fixture
def folder(tmp_path):
    return copied("bert_masked_lm", tmp_path)


def copied(name, target):
    for path in (ROOT / name).iterdir():
        if path.suffix in (".json", ".safetensors"):
            (target / path.name).write_bytes(path.read_bytes())
    return target


def edit_config(folder, remove=(), **changes):
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in remove} | changes
    path.write_text(json.dumps(config))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_header(folder, change):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    text = change(header)
    text = (json.dumps(header) if text is None else text).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def shard(folder, rename=lambda name: name, **index):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file)
        weight_map |= {n: rename(file) for n in part}
    index = {"weight_map": weight_map | index.pop("more", {})} | index
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


FIRST = "bert.encoder.layer.0.attention.self.query.weight"
CONFIGS = {
    "field that only others compute with": (
        {"is_causal": False},
        "is_causal=False is not supported for bert and might change",
    ),
    "activation we lack": (
        {"hidden_act": "gelu_fastest"},
        "hidden_act='gelu_fastest': no such activation here; did you mean",
    ),
    "relative positions": (
        {"position_embedding_type": "relative_key"},
        "position_embedding_type='relative_key' changes",
    ),
    "decoder mode": ({"is_decoder": True}, "is_decoder=True changes the numbers, and only False"),
    "family we lack": ({"model_type": "berd"}, "model_type='berd'; did you mean 'bert'"),
    "no family": ({"model_type": None}, "model_type=None"),
    "head we lack": (
        {"architectures": ["BertForKaraoke"]},
        "'BertForKaraoke' is unknown; pass head=none",
    ),
    "other depth": ({"num_hidden_layers": 3}, "no tensor encoder.layer.2.attention"),
    "fewer layers": (
        {"num_hidden_layers": 1},
        r"tensor encoder.layer.1.\S+ \(and 15 more\) has no place",
    ),
    "other width": ({"hidden_size": 20}, r"has shape \[\d+.*but config.json implies"),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_config(folder, what):
    changes, told = CONFIGS[what]
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=told):
        load_pretrained(folder)


def test_a_causal_encoder_says_so(tmp_path):
    folder = copied("bert_causal_lm", tmp_path)
    edit_config(folder, add_cross_attention=True)
    with pytest.raises(ConfigError, match="add_cross_attention=True changes the numbers"):
        load_pretrained(folder)
    edit_config(folder, remove=("is_decoder", "add_cross_attention"))
    with pytest.raises(
        ConfigError,
        match=r"is_decoder=None:.*BertLMHeadModel.*pass head=",
    ):
        load_pretrained(folder)
    assert load_pretrained(folder, head="masked_lm")[0].cfg.head == "masked_lm"


def test_albert_with_groups_of_several_layers_each_run_once(tmp_path):
    folder = copied("albert_unshared_base", tmp_path)
    edit_config(folder, inner_group_num=2)
    with pytest.raises(ConfigError, match=r"inner_group_num=2:.*groups.*1"):
        load_pretrained(folder)


TENSORS = {
    "missing": (
        lambda t: t.pop(FIRST),
        r"no tensor encoder.layer.0.attention.self.query.weight, which head='masked_lm'",
    ),
    "extra": (
        lambda t: t.update({"bert.gate": t[FIRST]}),
        "tensor bert.gate has no place|tensor gate has no place",
    ),
    "misspelled": (
        lambda t: t.update({FIRST + "s": t.pop(FIRST)}),
        "no tensor encoder.layer.0.attention.self.query.weight",
    ),
    "wrong shape": (
        lambda t: t.update({FIRST: t[FIRST][:8].copy()}),
        r"has shape \[8, 16\].*implies \[16, 16\]",
    ),
    "transposed bias": (
        lambda t: t.update({"cls.predictions.bias": t["cls.predictions.bias"][None]}),
        r"has shape \[1, 61\]",
    ),
    "quantised": (
        lambda t: t.update({FIRST: t[FIRST].astype(np.int8)}),
        "dtype int8: quantized weights are not supported",
    ),
    "twice": (
        lambda t: t.update({FIRST.removeprefix("bert."): t[FIRST]}),
        "twice, with and without 'bert.'",
    ),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors(folder, what):
    change, told = TENSORS[what]
    edit_tensors(folder, change)
    with pytest.raises(WeightsError, match=told):
        load_pretrained(folder)


def entry(name, **changes):
    return lambda header: header[name].update(changes)


HEADERS = {
    "offsets beyond the file": (
        entry(FIRST, data_offsets=[0, 10**9]),
        "lies at bytes 0 to 1000000000",
    ),
    "offsets that overlap": (
        lambda h: h[FIRST].update(
            data_offsets=[h[FIRST]["data_offsets"][0] + 4, h[FIRST]["data_offsets"][1] + 4]
        ),
        "overlaps or gaps",
    ),
    "negative offset": (entry(FIRST, data_offsets=[-4, 1020]), "not natural numbers"),
    "shape that does not fit": (
        entry(FIRST, shape=[16, 17]),
        "needs 1088 bytes, its header gives 1024",
    ),
    "dtype unheard of": (entry(FIRST, dtype="F7"), "dtype F7"),
    "entry without a shape": (
        lambda h: h[FIRST].pop("shape"),
        "lacks dtype, shape or data_offsets",
    ),
    "no JSON": (lambda h: "{ nothing", "the header is not JSON"),
    "a list": (lambda h: "[1, 2]", "the header: must be a JSON object"),
    "a name twice": (lambda h: '{"a": 1, "a": 2}', "names a twice"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers(folder, what):
    change, told = HEADERS[what]

    def apply(header):
        out = change(header)
        return out if isinstance(out, str) else None

    edit_header(folder, apply)
    with pytest.raises(WeightsError, match=told):
        load_pretrained(folder)


@pytest.mark.parametrize("kept", [3, 0.999])
def test_truncated(folder, kept):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: kept if kept > 1 else int(len(data) * kept)])
    with pytest.raises(WeightsError, match=r"not a whole safetensors file|truncated"):
        load_pretrained(folder)


def test_index_that_points_elsewhere(folder):
    shard(folder, rename=lambda name: f"../{name}")
    with pytest.raises(WeightsError, match="no plain name in its folder"):
        load_pretrained(folder)


def test_index_with_a_missing_part(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        WeightsError, match=r"names model-00002-of-00002\.safetensors, which is missing"
    ):
        load_pretrained(folder)


def test_index_that_promises_too_much(folder):
    shard(folder, more={"bert.pooler.dense.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(WeightsError, match=r"says that bert.pooler.dense.weight is in"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"]
)
def test_pickles_and_other_formats(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(WeightsError, match=rf"{name}: .*is not read here. Convert it once"):
        load_pretrained(folder)


def test_empty_and_absent_folders(tmp_path):
    for load in (load_pretrained, load_labels, load_tokenizer):
        with pytest.raises(WeightsError, match="bert-base-uncased: no such directory"):
            load("bert-base-uncased")
    with pytest.raises(WeightsError, match=r"no config.json"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((ROOT / "bert_base" / "config.json").read_text())
    with pytest.raises(WeightsError, match=r"no model.safetensors"):
        load_pretrained(tmp_path)


def test_head_that_the_file_lacks(folder):
    with pytest.raises(
        WeightsError,
        match=r"no tensor classifier.bias \(and 3 more\), which head='sequence_classification'",
    ):
        load_pretrained(folder, head="sequence_classification")
    with pytest.raises(
        ConfigError, match="head='sequence_clasification': no such head; did you mean"
    ):
        load_pretrained(folder, head="sequence_clasification")


def test_overrides_are_of_how_not_what(folder):
    with pytest.raises(ConfigError, match=r"d_model: comes from config\.json; only dropout"):
        load_pretrained(folder, d_model=8)


def test_known_relics_and_other_heads_are_no_errors(folder):
    """Buffers of old versions, the old names of norms, and the tensors of a head that is not asked
    for."""

    def change(tensors):
        tensors["bert.embeddings.position_ids"] = np.arange(14)[None]
        tensors["bert.pooler.dense.weight"] = tensors[FIRST].copy()
        tensors["cls.seq_relationship.weight"] = tensors[FIRST][:2].copy()
        tensors["cls.predictions.decoder.weight"] = tensors[
            "bert.embeddings.word_embeddings.weight"
        ].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
        for new, old in (("weight", "gamma"), ("bias", "beta")):
            tensors[f"bert.embeddings.LayerNorm.{old}"] = tensors.pop(
                f"bert.embeddings.LayerNorm.{new}"
            )

    due = load_pretrained(ROOT / "bert_masked_lm")[1]
    edit_tensors(folder, change)
    params = load_pretrained(folder)[1]
    np.testing.assert_array_equal(params["embed"]["norm"]["scale"], due["embed"]["norm"]["scale"])
    edit_tensors(
        folder,
        lambda t: t.update({"bert.encoder.layer.7.output.dense.bias": t["cls.predictions.bias"]}),
    )
    with pytest.raises(WeightsError, match=r"encoder.layer.7.output.dense.bias has no place"):
        load_pretrained(folder)


def test_an_output_table_of_its_own_unties(folder):
    def change(tensors):
        tensors["cls.predictions.decoder.weight"] = (
            tensors["bert.embeddings.word_embeddings.weight"] * 2
        )

    edit_tensors(folder, change)
    model, params = load_pretrained(folder)
    assert not model.cfg.tie_embeddings
    assert params["masked_lm"]["vocab"]["kernel"].shape == (61, 16)


def test_the_bias_of_the_output_layer_counts_where_two_differ(folder, tmp_path):
    def change(tensors):
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"] + 1
        tensors["cls.predictions.decoder.weight"] = (
            tensors["bert.embeddings.word_embeddings.weight"] * 2
        )

    due = load_pretrained(folder)[1]["masked_lm"]["vocab"]["bias"] + 1
    edit_tensors(folder, change)
    model, params = load_pretrained(folder)
    np.testing.assert_allclose(params["masked_lm"]["vocab"]["bias"], due)
    save_pretrained(tmp_path / "again", model, params)
    saved = load_file(tmp_path / "again" / "model.safetensors")
    for name in ("cls.predictions.decoder.bias", "cls.predictions.bias"):
        np.testing.assert_array_equal(saved[name], due)


def test_a_head_that_is_made_has_as_many_classes_as_asked_for(folder):
    made = dict(head="sequence_classification", new_head=True)
    model, params = load_pretrained(folder, **made, num_labels=3)
    assert model.cfg.num_labels == params["classifier"]["dense"]["kernel"].shape[-1] == 3
    mesh = build_mesh(MeshConfig(data=8))
    spread, placed = load_pretrained(folder, **made, labels=["a", "b", "c"], mesh=mesh)
    assert spread.cfg == model.cfg
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    with pytest.raises(ConfigError, match=r"num_labels=3: .*new_head=True"):
        load_pretrained(folder, num_labels=3)
    with pytest.raises(ConfigError, match=r"num_labels=2: .* are 3; leave one"):
        load_pretrained(folder, **made, num_labels=2, labels=["a", "b", "c"])
    with pytest.raises(ConfigError, match="num_labels=3: head='masked_lm' has no classes"):
        load_pretrained(folder, new_head=True, num_labels=3)


def test_bookkeeping_is_no_notice(folder, caplog):
    edit_config(folder, _model_name_or_path="a", unk_token_id=0, surprise=1)
    load_pretrained(folder)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "surprise" in told[0] and "unk_token_id" not in told[0]


def test_t5_takes_null_for_no_scale(tmp_path):
    """Numbers of transformers; a T5 without the field scales."""
    folder = copied("t5_conditional_generation", tmp_path)
    for change, due in (({}, 0.51398), ({"scale_decoder_outputs": None}, 2.05594)):
        edit_config(folder, **change)
        model, params = load_pretrained(folder)
        start = np.asarray([[0]])
        apply = jax.jit(model.apply)
        logits = apply({"params": params}, np.asarray([[5, 7, 9]]), start).logits
        np.testing.assert_allclose(logits[0, 0, 0], due, atol=2e-5)


def test_rounded_positions_of_the_file_are_one_notice(tmp_path, caplog):
    folder = copied("pegasus_conditional_generation", tmp_path)
    load_pretrained(folder)
    assert not caplog.records

    def change(tensors):
        for side in ("encoder", "decoder"):
            name = f"model.{side}.embed_positions.weight"
            tensors[name] = tensors[name].astype(np.float16)

    edit_tensors(folder, change)
    load_pretrained(folder)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "encoder.embed_positions.weight stored in float16: transformers" in told[0]
