"""Families whose weights are drawn from names and shapes give torch's numbers, and write what
torch writes; each has a file in tests/pretrained/families, made by tools/scoreboard.py."""

import json
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_pretrained, registry, save_pretrained
from flaxformer_lite.config import ConfigError, MeshConfig, check_family
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.pretrained import wrappers
from flaxformer_lite.pretrained.hf_config import family_of, head_of, read_config, write_config
from flaxformer_lite.pretrained.save import published_tensors
from flaxformer_lite.sharding import parameter_rules
from flaxformer_lite.sharding.mesh import build_mesh
from flaxformer_lite.sharding.parameters import param_specs
from tests.pretrained import recipe
from tests.pretrained.fixtures import stored

FAMILIES = {
    path.stem: json.loads(path.read_text())
    for path in sorted(Path(__file__).with_name("families").glob("*.json"))
}
NAMED_HEADS = ("sequence_classification", "token_classification")
LABELS = {"id2label": {"0": "A", "1": "B", "2": "C"}}


def config_of(published, architecture):
    """The config of a class that transformers has for a published config."""
    published = published | {"architectures": [architecture]}
    family = family_of(published, Path())
    head = head_of(family, published, None)
    heads = family.PUBLISHED.heads
    of_heads = set().union(*(other.fixed for other in heads.values()))
    # such as is_decoder of a causal encoder, which the stored config of another head may have
    published = {name: value for name, value in published.items() if name not in of_heads}
    published |= heads[head].fixed
    return read_config(family, published | LABELS if head in NAMED_HEADS else published, head)


def tensors_of(cfg):
    """Shapes of the tensors that a model's file has, by name."""
    shapes = parameter_shapes(check_family(cfg)(cfg))
    spelled = registry.resolve("models", cfg.family).PUBLISHED
    tensors = published_tensors(spelled, cfg, shapes)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_every_class_of_transformers_has_the_same_tensors(name):
    """Each has a partition rule, too; of the first class, the test below."""
    family = FAMILIES[name]
    for architecture, digest in family["heads"].items():
        cfg = config_of(family["config"], architecture)
        written = write_config(registry.resolve("models", cfg.family), cfg)
        assert written["architectures"] == [architecture]
        shapes = parameter_shapes(check_family(cfg)(cfg))
        param_specs(shapes, parameter_rules.rules(cfg), build_mesh(MeshConfig(data=8)))
        assert recipe.digest(tensors_of(cfg)) == digest, architecture


def write_files(config, folder):
    """Writes the files of a published config with the recipe's tensors; returns their shapes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shapes = tensors_of(config_of(config, config["architectures"][0]))
    tensors = {one: recipe.tensor(one, shape) for one, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return shapes


@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_are_those_of_torch(name, tmp_path):
    """The last token of two rows, one of them padded; `make scoreboard` compares all.

    The model is called without jit: families share the programs of single operations.
    """
    family = FAMILIES[name]
    source = tmp_path / "source"
    shapes = write_files(family["config"], source)
    (architecture,) = family["config"]["architectures"]
    assert recipe.digest(shapes) == family["heads"][architecture]
    model, params = load_pretrained(source)
    cfg = model.cfg
    mesh = build_mesh(MeshConfig(data=8))
    param_specs(parameter_shapes(model), parameter_rules.rules(cfg), mesh)
    lengths = tuple(family.get("lengths", recipe.LENGTHS))
    given = recipe.inputs(
        cfg.vocab_size,
        cfg.pad_token_id,
        seq2seq=cfg.skeleton == "encoder_decoder",
        lengths=lengths,
    )
    output = model.apply({"params": params}, **given)
    got = output.last_hidden_state if output.logits is None else output.logits
    lengths = recipe.TARGET_LENGTHS if "decoder_input_ids" in given else lengths
    rows = [np.asarray(row[length - 1]) for row, length in zip(got, lengths, strict=True)]
    due = np.asarray(family["numbers"])
    np.testing.assert_allclose(rows, due, rtol=0, atol=1e-5 * np.abs(due).max())
    save_pretrained(tmp_path / "again", model, params)
    again = stored(tmp_path / "again")
    assert again.keys() == shapes.keys()
    for one, array in stored(source).items():
        np.testing.assert_array_equal(again[one], array, err_msg=one)


def test_the_text_model_of_a_config_with_images_is_read():
    """A nested `text_config`, as of Gemma 3 from 4B on, is the model of its fields alone."""
    text = FAMILIES["gemma3_text"]["config"]
    nested = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 9},
        "mm_tokens_per_image": 4,
    }
    flat = wrappers.flatten(nested, Path())
    cfg = read_config(family_of(flat, Path()), flat, "lm")
    assert cfg == config_of(text, "Gemma3ForCausalLM")
    written = write_config(registry.resolve("models", cfg.family), cfg)
    assert written["architectures"] == ["Gemma3ForCausalLM"]


def test_the_text_model_of_a_clip_is_read(tmp_path):
    """Its files hold an image model as well."""
    source = tmp_path / "source"
    source.mkdir()
    text = FAMILIES["clip_text_model"]["config"]
    shapes = tensors_of(config_of(text, "CLIPTextModelWithProjection"))
    due = {name: recipe.tensor(name, shape) for name, shape in shapes.items()}
    nested = {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 20}
    nested |= {"text_config": text | {"projection_dim": 9}, "vision_config": {"hidden_size": 9}}
    (source / "config.json").write_text(json.dumps(nested))
    images = {"logit_scale": np.full((), 2.7), "visual_projection.weight": np.ones((20, 9))}
    save_file(due | {"vision_model.x": np.ones(3)} | images, source / "model.safetensors")
    save_pretrained(tmp_path / "again", *load_pretrained(source))
    again = stored(tmp_path / "again")
    assert again.keys() == due.keys()
    np.testing.assert_array_equal(again["text_projection.weight"], due["text_projection.weight"])
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["architectures"] == ["CLIPTextModelWithProjection"]


def test_an_esm_predicts_contacts_and_rounds_frequencies_as_its_file(tmp_path):
    """Torch's `predict_contacts` of the same weights; all of Meta's ESM-2 are rounded."""
    source = tmp_path / "source"
    write_files(FAMILIES["esm"]["config"], source)
    model, params = load_pretrained(source)
    assert model.cfg.position.float16_frequencies
    ids = np.array([[0, 14, 50, 41, 56, 2, 1, 1]], np.int32)
    keep = (ids != 1).astype(np.int32)
    contacts = jax.jit(lambda params: model.apply({"params": params}, ids, keep, method="contacts"))
    got = np.asarray(contacts(params)[0])
    np.testing.assert_allclose(got[0, :4], [0.435021, 0.5363784, 0.3290336, 0.6129213], rtol=1e-5)
    np.testing.assert_allclose(got[2, 2:], [0.6600507, 0.4771947, *[0.4769805] * 2], rtol=1e-5)
    tensors = stored(source)
    unread = "esm.embeddings.position_embeddings.weight"  # of Meta's files, beside rotary positions
    tensors[unread] = np.ones((32, 24), np.float32)
    name = "esm.rotary_embeddings.inv_freq"
    for factor, rounded in ((1.0, False), (1.5, None)):
        exponents = np.arange(3) / 3
        exact = factor * 10000.0**-exponents
        save_file(tensors | {name: exact.astype(np.float32)}, source / "model.safetensors")
        if rounded is None:
            with pytest.raises(ConfigError, match=r"frequencies of rope_theta=10000\.0"):
                load_pretrained(source)
        else:
            assert load_pretrained(source)[0].cfg.position.float16_frequencies == rounded


def test_a_jina_body_is_read_where_its_file_names_a_language_model(tmp_path):
    """As the published folders do; without its classes, ALiBi is refused, never read as BERT's."""
    source = tmp_path / "source"
    config = FAMILIES["jina_bert"]["config"]
    write_files(config | {"architectures": ["JinaBertModel"]}, source)
    due = load_pretrained(source)
    (source / "config.json").write_text(json.dumps(config))
    model, params = load_pretrained(source)
    assert (model.cfg.family, model.cfg.head) == ("jina_bert", "none")
    chex.assert_trees_all_equal(params, due[1])
    with pytest.raises(ConfigError, match="position_embedding_type='alibi'"):
        config_of(config, "BertModel")


REFUSED = {
    "gemma4_text": (
        {"use_bidirectional_attention": "all"},
        "use_bidirectional_attention='all' changes the numbers",
    ),
    "deepseek_v3": ({"num_key_value_heads": 2}, "num_key_value_heads=2: must be.*latent vector"),
    "t5gemma": (
        {"decoder": {"rms_norm_eps": 0.1}},
        r"encoder.rms_norm_eps=1e-06, decoder.rms_norm_eps=0.1: must be the same",
    ),
    "granitemoehybrid": (
        {"layer_types": ["mamba", "attention"]},
        r"layer_types=\['mamba', 'attention'\]: must be 2 entries, each attention or full_att",
    ),
    "lfm2": ({"conv_bias": True}, "conv_bias=True changes the numbers"),
    "longformer": ({"attention_window": [4, 3]}, r"attention_window=\[4, 3\]: must be an even"),
    "mixtral": ({"router_jitter_noise": 0.1}, "router_jitter_noise=0.1 .*only 0.0 is supported"),
    "big_bird": ({"attention_type": "sparse"}, "block_sparse or original_full"),
    "longt5": ({"encoder_attention_type": "full"}, "local or transient-global"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_family_does_not_compute_is_refused(name):
    config = FAMILIES[name]["config"]
    changes, message = REFUSED[name]
    changed = {**config, **changes}
    if isinstance(config.get("decoder"), dict):
        changed["decoder"] = {**config["decoder"], **changes["decoder"]}
    with pytest.raises(ConfigError, match=message):
        config_of(changed, config["architectures"][0])


def test_norms_of_single_heads_are_read_into_a_stack_and_written_from_it(tmp_path):
    source = tmp_path / "source"
    config = FAMILIES["stablelm"]["config"]
    shapes = write_files(config, source)
    model, params = load_pretrained(source, scan=True)
    assert params["decoder"]["layers"]["block_0"]["attention"]["key_norm"]["scale"].shape[:2] == (
        config["num_hidden_layers"],
        config["num_key_value_heads"],
    )
    save_pretrained(tmp_path / "again", model, params)
    again = load_file(tmp_path / "again" / "model.safetensors")
    name = "model.layers.1.self_attn.k_layernorm.norms.1.weight"
    np.testing.assert_array_equal(again[name], recipe.tensor(name, shapes[name]))
    assert {one: x.shape for one, x in again.items()} == shapes
