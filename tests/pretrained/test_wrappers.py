"""The text half of a model that sees or hears too, against the same model in its own folder."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_pretrained, save_pretrained
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import PromptRows, prefill
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.pretrained import wrappers
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.pretrained.fixtures import ROOT, loaded, stored
from tests.pretrained.test_families import FAMILIES, write_files

IDS = np.array([[5, 9, 31, 7], [8, 2, 40, 11]], np.int32)
# how transformers 4 and 5 and the omni models of Qwen name the body and the head of the text half
PREFIXES = {
    "transformers 4": ("language_model.model.", "language_model."),
    "transformers 5": ("model.language_model.", ""),
    "thinker": ("thinker.model.", "thinker."),
}
OTHERS = {
    "visual.patch_embed.proj.weight": np.ones((3, 2), np.float32),
    "model.vision_tower.layers.0.norm.weight": np.ones(3, np.float32),
    "model.multi_modal_projector.linear.weight": np.ones((2, 2), np.float32),
}


def published_text(name="llama_lm"):
    return json.loads((ROOT / name / "config.json").read_text())


def write_wrapper(folder, text, prefixes, name="llama_lm", model_type="sees"):
    """Writes a fixture as the text half of a model with images."""
    body, head = prefixes
    folder.mkdir()
    nested = {"text_config": text, "vision_config": {"hidden_size": 9}}
    if body.startswith("thinker."):
        nested = {"thinker_config": nested}
    config = {"model_type": model_type, "architectures": ["SeesForConditionalGeneration"]} | nested
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(OTHERS)
    for one, tensor in stored(ROOT / name).items():
        if one.startswith("model."):
            tensors[body + one.removeprefix("model.")] = tensor
        else:
            tensors[head + one] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("prefixes", PREFIXES.values(), ids=PREFIXES)
def test_the_text_half_is_the_model_of_its_own_folder(prefixes, tmp_path, caplog):
    source = tmp_path / "source"
    write_wrapper(source, published_text(), prefixes)
    with caplog.at_level(logging.WARNING, "flaxformer_lite"):
        model, params = load_pretrained(source)
    (notice,) = [text for text in caplog.messages if "left out" in text]
    assert notice.endswith(
        "the text half of a 'sees' is read;"
        " 3 tensors of multi_modal_projector, vision_tower, visual are left out."
    )
    plain, due = loaded("llama_lm")
    assert model.cfg == plain.cfg
    np.testing.assert_array_equal(
        model.apply({"params": params}, IDS).logits, plain.apply({"params": due}, IDS).logits
    )
    save_pretrained(tmp_path / "again", model, params)
    save_pretrained(tmp_path / "due", plain, due)
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["model_type"] == "llama"
    assert written["architectures"] == ["LlamaForCausalLM"]
    assert stored(tmp_path / "again").keys() == stored(tmp_path / "due").keys()


def test_an_unknown_text_half_is_named_with_the_nearest(tmp_path):
    text = published_text() | {"model_type": "lama"}
    write_wrapper(tmp_path / "source", text, PREFIXES["transformers 5"])
    with pytest.raises(ConfigError) as error:
        load_pretrained(tmp_path / "source")
    message = str(error.value)
    assert "text model_type 'lama' is not here" in message
    assert "'llama'" in message
    assert "\n" not in message


def test_kimi_is_read_as_deepseek_v3_alone_and_below_images(tmp_path):
    """Kimi K2 has its own model_type, and Kimi K2.5 is one below images."""
    plain = tmp_path / "plain"
    write_files(FAMILIES["deepseek_v3"]["config"], plain)
    config = json.loads((plain / "config.json").read_text())
    text = config | {"model_type": "kimi_k2"}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "config.json").write_text(json.dumps(text))
    save_file(stored(plain), alone / "model.safetensors")
    wrapped = tmp_path / "wrapped"
    wrapped.mkdir()
    nested = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}
    nested |= {"text_config": text, "vision_config": {"hidden_size": 9}}
    (wrapped / "config.json").write_text(json.dumps(nested))
    tensors = {f"language_model.{name}": tensor for name, tensor in stored(plain).items()}
    save_file(tensors | OTHERS, wrapped / "model.safetensors")
    model, params = load_pretrained(plain)
    due = model.apply({"params": params}, IDS).logits
    for folder in (alone, wrapped):
        again, same = load_pretrained(folder)
        assert again.cfg == model.cfg
        np.testing.assert_array_equal(again.apply({"params": same}, IDS).logits, due)


# transformers 5.23, of the same weights as a PaliGemma 2 with the token_type_ids of its processor:
# the first logits of the last token of each prompt
BOTH_WAYS = [
    [1.560934066772461, 0.748465895652771, 0.7632913589477539, 0.9387471675872803],
    [1.810775876045227, -0.5098708868026733, -0.4924122095108032, -1.1810193061828613],
]


def test_a_paligemma_reads_its_prompt_both_ways_and_past_windows(tmp_path):
    source = tmp_path / "source"
    text = published_text("gemma2_lm") | {"sliding_window": 3}
    write_wrapper(source, text, PREFIXES["transformers 4"], "gemma2_lm", "paligemma")
    model, params = load_pretrained(source)
    ids = np.array([[5, 9, 31, 7, 20, 12], [0, 0, 8, 2, 40, 11]], np.int32)
    rows = PromptRows(np.array([0, 2], np.int32))
    logits, _ = prefill(model, params, ids, rows, None, slots=8)
    np.testing.assert_allclose(logits[:, :4], BOTH_WAYS, rtol=1e-5)
    keep = ids != 0
    whole = model.apply({"params": params}, ids, attention_mask=keep, prefix_mask=keep).logits
    np.testing.assert_allclose(whole[:, -1, :4], BOTH_WAYS, rtol=1e-5)
    written = generate(
        model, params, ids, attention_mask=keep, max_new_tokens=6, temperature=0, eos_token_id=None
    )
    np.testing.assert_array_equal(np.asarray(written)[:, 6:], [[33] * 6, [11] * 6])
    save_pretrained(tmp_path / "again", model, params)
    assert load_pretrained(tmp_path / "again")[0].cfg == model.cfg


def test_a_gemma4_is_read_as_its_text_model(tmp_path):
    """Torch's numbers of a Gemma4ForConditionalGeneration, to 3e-6: docs/families.md."""
    plain = tmp_path / "plain"
    text = FAMILIES["gemma4_text"]["config"]
    write_files(text, plain)
    wrapped = tmp_path / "wrapped"
    wrapped.mkdir()
    nested = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]}
    nested |= {"text_config": text, "vision_config": {"hidden_size": 9}, "audio_config": None}
    (wrapped / "config.json").write_text(json.dumps(nested))
    tensors = {"model.embed_vision.embedding_projection.weight": np.ones((3, 2), np.float32)}
    for name, tensor in stored(plain).items():
        tensors[name.replace("model.", "model.language_model.", 1)] = tensor
    save_file(tensors | OTHERS, wrapped / "model.safetensors")
    model, params = load_pretrained(plain)
    again, same = load_pretrained(wrapped)
    assert again.cfg == model.cfg
    due = model.apply({"params": params}, IDS % text["vocab_size"]).logits
    np.testing.assert_array_equal(
        again.apply({"params": same}, IDS % text["vocab_size"]).logits, due
    )


def flat_of(text, **outer):
    """The config of the text half of a wrapper with these fields."""
    nested = {"model_type": "sees", "architectures": ["SeesForConditionalGeneration"]}
    nested |= {"text_config": text, "vision_config": {"hidden_size": 9}}
    return wrappers.flatten(nested | outer, Path("folder"))


def test_a_class_of_a_publisher_has_the_head_of_its_text_half():
    text = published_text() | {"architectures": ["LlamaForCausalLM"]}
    flat = flat_of(text, model_type="internvl_chat", architectures=["InternVLChatModel"])
    assert flat["architectures"] == ["LlamaForCausalLM"]
    flat = flat_of(text | {"architectures": None}, architectures=["LlavaModel"])
    assert flat["architectures"] == ["LlamaModel"]


def test_tokens_of_the_whole_count_where_the_half_has_null():
    flat = flat_of(published_text() | {"pad_token_id": None, "eos_token_id": 7}, pad_token_id=3)
    assert flat["pad_token_id"] == 3
    assert flat["eos_token_id"] == 7


@pytest.mark.parametrize(("name", "scale"), [("llava_next", 1.0), ("hyperclovax_vision_v2", 8.0)])
def test_logits_are_scaled_where_the_wrapper_scales_them(name, scale):
    text = FAMILIES["granite"]["config"] | {"logits_scaling": 8.0}
    assert flat_of(text, model_type=name)["logits_scaling"] == scale


def test_a_null_vision_config_is_no_wrapper():
    config = published_text() | {"vision_config": None}
    assert wrappers.flatten(config, Path("folder")) is config


def test_a_text_half_that_is_there_twice_is_refused(tmp_path):
    source = tmp_path / "source"
    write_wrapper(source, published_text(), PREFIXES["transformers 5"])
    tensors = load_file(source / "model.safetensors")
    name = "model.language_model.norm.weight"
    save_file(tensors | {"text_model.norm.weight": tensors[name]}, source / "model.safetensors")
    with pytest.raises(WeightsError, match=r"is a second norm\.weight"):
        load_pretrained(source)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": 5},
        {"architectures": {"a": 1}},
        {"text_config": published_text() | {"architectures": 5}},
        {"text_config_dict": [1]},
    ],
    ids=str,
)
def test_fields_of_another_type_are_taken_as_missing(changes):
    wrapper = {"model_type": "sees", "text_config": published_text()} | changes
    assert wrappers.flatten(wrapper, ROOT)["model_type"] == "llama"
