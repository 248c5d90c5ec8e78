"""Settings that come with published weights."""

import json

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.settings import make_settings
from flaxformer_lite.model_details import published_settings
from tests.pretrained.fixtures import MANIFEST, ROOT


@pytest.mark.parametrize("name", [name for name, row in MANIFEST.items() if row.get("generate")])
def test_every_published_directory_gives_settings(name):
    found = make_settings(max_new_tokens=5, **published_settings(ROOT / name))
    assert found.pad_token_id == MANIFEST[name]["generate"]["greedy"]["pad_token_id"]


def write(folder, name, **values):
    (folder / name).write_text(json.dumps(values))


NEWER = {"eos_token_id": [3, 4], "bad_words_ids": [[7]], "forced_eos_token_id": None}


def test_the_newer_file_alone_counts_and_spellings_are_ours(tmp_path):
    write(tmp_path, "config.json", eos_token_id=1, num_beams=2, vocab_size=9)
    assert published_settings(tmp_path) == {"eos_token_id": 1, "num_beams": 2, "pad_token_id": 1}
    write(tmp_path, "generation_config.json", **NEWER)
    want = {"eos_token_id": (3, 4), "suppress_tokens": (7,), "pad_token_id": 3}
    assert published_settings(tmp_path) == want


def test_tokens_beyond_the_vocabulary_are_left_out_with_a_notice(tmp_path, caplog):
    write(tmp_path, "config.json", text_config={"vocab_size": 9}, vision_config={"vocab_size": 3})
    write(tmp_path, "generation_config.json", eos_token_id=[8, 9], suppress_tokens=[50256, 9])
    assert published_settings(tmp_path) == {"eos_token_id": (8,), "pad_token_id": 8}
    assert "eos_token_id: left out what is not in the vocabulary of 9 tokens: [9]" in caplog.text
    write(tmp_path, "config.json", eos_token_id=32000, pad_token_id=-1, vocab_size=9)
    (tmp_path / "generation_config.json").unlink()
    assert published_settings(tmp_path) == {}


def test_a_decoder_without_a_start_begins_with_bos(tmp_path):
    write(tmp_path, "config.json", is_encoder_decoder=True, bos_token_id=5, pad_token_id=1)
    assert published_settings(tmp_path)["decoder_start_token_id"] == 5
    write(tmp_path, "config.json", is_encoder_decoder=True, decoder_start_token_id=2)
    assert published_settings(tmp_path)["decoder_start_token_id"] == 2


@pytest.mark.parametrize(
    "values",
    [
        {"encoder_no_repeat_ngram_size": 3},
        {"num_beams": 2, "renormalize_logits": True},
    ],
)
def test_what_only_transformers_computes_is_refused(tmp_path, values):
    write(tmp_path, "generation_config.json", **values)
    with pytest.raises(ConfigError, match=rf"{list(values)[-1]}=.*remove"):
        published_settings(tmp_path)
    off = {"typical_p": 0.9, "guidance_scale": 1.0, "encoder_no_repeat_ngram_size": 0}
    write(tmp_path, "generation_config.json", **off)
    assert published_settings(tmp_path) == {}


def test_sampling_only_where_it_is_on(tmp_path):
    sampled = {"temperature": 0.6, "top_p": 0.9}
    write(tmp_path, "generation_config.json", **sampled)
    assert published_settings(tmp_path) == {}
    write(tmp_path, "generation_config.json", **sampled, do_sample=True)
    assert published_settings(tmp_path) == sampled | {"top_k": 50, "min_p": 0.0}


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config.json is not JSON"):
        published_settings(tmp_path)
    (tmp_path / "generation_config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"generation_config.json:.*object"):
        published_settings(tmp_path)


def test_numbers_of_numpy_and_lists_are_read():
    texts = {"stop_strings": "end", "suppress_tokens": [4, np.int64(5)], "early_stopping": np.True_}
    numbers = {"eos_token_id": np.int32(2), "temperature": np.float32(0.5)}
    none = {"pad_token_id": None, "top_p": None}
    found = make_settings(max_new_tokens=np.int64(3), **numbers, **texts, **none)
    due = {"stop_strings": ("end",), "suppress_tokens": (4, 5), "early_stopping": True}
    assert found == make_settings(max_new_tokens=3, eos_token_id=2, temperature=0.5, **due)
    assert found.eos == (2,) and make_settings(max_new_tokens=1, eos_token_id=[3, 4]).eos == (3, 4)
    for is_sampled, temperature in ((True, 0.7), (False, 0.0)):  # says nothing new
        own = {"max_new_tokens": 3, "temperature": temperature}
        assert make_settings(do_sample=is_sampled, **own) == make_settings(**own)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_new_tokens", "5", r"max_new_tokens='5':.*number"),
        ("max_new_tokens", "5" * 10**5, r"max_new_tokens='5{119}\.\.\.: must be a whole number"),
        ("temperature", float("nan"), "temperature=nan: must be a number"),
        ("suppress_tokens", "a", "must be token ids"),
        ("stop_strings", [""], "must be texts"),
        ("early_stopping", "now", "True, False or 'never'"),
        ("do_sample", True, "temperature=1.0 is the model's own"),
        ("temperature", 1e-45, r"temperature=1e-45:.*least.*1e-30, or 0"),
        ("temperature", 1e300, r"temperature=1e\+300:.*most.*1e\+30"),
        ("max_new_tokens", 10**12, r"max_new_tokens=1000000000000:.*most.*2147483647"),
    ],
)
def test_values_of_another_kind(name, value, message):
    with pytest.raises(ConfigError, match=message):
        make_settings(**{"max_new_tokens": 3, name: value})
