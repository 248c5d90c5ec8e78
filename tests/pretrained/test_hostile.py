"""Files made to break a reader: each is refused in a sentence, in little time, and nothing raw
reaches the terminal."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite import load_labels, load_pretrained, load_tokenizer
from flaxformer_lite.__main__ import main
from flaxformer_lite.config import ConfigError
from flaxformer_lite.model_details import published_settings
from flaxformer_lite.pretrained.folder import open_weights
from flaxformer_lite.pretrained.safetensors import WeightsError
from tests.pretrained.test_refusals import FIRST, copied, edit_config, edit_header


@pytest.fixture
def folder(tmp_path):
    return copied("bert_masked_lm", tmp_path)


def renamed(name):
    return lambda header: header.update({name: header.pop(FIRST)})


def of_shape(*shape):
    return lambda header: header[FIRST].update(shape=list(shape))


HEADERS = {
    "a dimension of 2**63": (of_shape(2**63), r"shape \[9223372036854775808\] is larger than any"),
    "nothing of 2**63 rows": (of_shape(2**63, 0), "is larger than any"),
    "sixty-five axes": (of_shape(*[1] * 65), "is larger than any"),
    "a hundred thousand axes": (of_shape(*[10**38] * 100_000), "is larger than any"),
    "a number of four thousand digits": (
        lambda h: json.dumps(h).replace("1024", "1" * 4000),
        "a whole number of 4000 digits",
    ),
    "nested without end": (lambda h: '{"a":' + "[" * 100_000, "the header is not JSON"),
    "a dtype that is a list": (lambda h: h[FIRST].update(dtype=["F32"]), r"has dtype \['F32'\]"),
    "a shape that is a text": (lambda h: h[FIRST].update(shape="16"), "not natural numbers"),
    "an entry that is a number": (
        lambda h: h.update({FIRST: 3}),
        "lacks dtype, shape or data_offsets",
    ),
    "a surrogate": (renamed("\ud800"), r"tensor '\\ud800': a name must be printable"),
    "an escape": (renamed("\x1b[2J"), r"tensor '\\x1b\[2J': a name must be printable"),
    "text from right to left": (
        renamed("a\u202eb"),
        r"tensor 'a\\u202eb': a name must be printable",
    ),
    "an endless name": (
        renamed("x" * 10**6),
        r"tensor 'x+\.\.\.: a name must be printable and at most 1000",
    ),
}


@pytest.mark.parametrize("what", HEADERS)
def test_headers(folder, what):
    change, message = HEADERS[what]
    edit_header(folder, lambda header: text if isinstance(text := change(header), str) else None)
    with pytest.raises(WeightsError, match=message):
        load_pretrained(folder)


def test_markup_in_a_name_is_a_name(folder, capsys):
    edit_header(folder, renamed("[/x]:smile:"))
    main(["inspect", str(folder)])
    assert "[/x]:smile:" in capsys.readouterr().out


def test_many_tensors_need_one_file_descriptor(folder):
    """As many as BERT-large has, under the usual limit of 256."""
    save_file({f"t{i}": np.zeros(3, np.float32) for i in range(389)}, folder / "model.safetensors")
    before = len(os.listdir("/proc/self/fd"))
    tensors = open_weights(folder)
    assert len(os.listdir("/proc/self/fd")) <= before + 1 and len(tensors) == 389


def test_a_tensor_that_is_not_aligned(folder):
    due = load_file(folder / "model.safetensors")
    edit_header(folder, lambda header: json.dumps(header) + " " * (3 - len(json.dumps(header)) % 2))
    for name, tensor in open_weights(folder).items():
        np.testing.assert_array_equal(tensor.read(), due[name])


JSONS = [
    (
        "generation_config.json",
        '{"eos_token_id": "2"}',
        published_settings,
        "eos_token_id='2': must be a whole number or",
    ),
    (
        "generation_config.json",
        '{"bad_words_ids": 3}',
        published_settings,
        "bad_words_ids=3: must be a list",
    ),
    (
        "generation_config.json",
        '{"suppress_tokens": {}}',
        published_settings,
        "suppress_tokens={}: must be a list",
    ),
    (
        "tokenizer_config.json",
        '{"chat_template": [1, {"name": "default", "template": 3}]}',
        load_tokenizer,
        r"chat_template=\[1, .*must be a text",
    ),
    (
        "tokenizer_config.json",
        '{"padding_side": "middle"}',
        load_tokenizer,
        "padding_side='middle': must be right or left",
    ),
    (
        "tokenizer_config.json",
        '{"model_max_length": "512"}',
        load_tokenizer,
        "model_max_length='512': must be a number",
    ),
    ("special_tokens_map.json", "[" * 100_000, load_tokenizer, "nested too deeply"),
    (
        "config.json",
        '{"num_labels": 1000000000}',
        load_labels,
        "num_labels=1000000000: no model is so large",
    ),
    (
        "config.json",
        '{"num_labels": "two"}',
        load_labels,
        "num_labels='two': must be a whole number",
    ),
    (
        "config.json",
        '{"model_type": "' + "x" * 10**6 + '"}',
        load_pretrained,
        r"model_type='x+\.\.\.; the families",
    ),
]


@pytest.mark.parametrize(("name", "text", "read", "message"), JSONS)
def test_json_beside_weights(folder, name, text, read, message):
    (folder / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )
    (folder / name).write_text(text)
    with pytest.raises((ConfigError, WeightsError), match=message):
        read(folder)


def test_a_shared_layer_repeated_without_end(tmp_path):
    """The file says nothing about the depth of a model whose layers are one."""
    edit_config(copied("albert_base", tmp_path), num_hidden_layers=2_000)
    with pytest.raises(ConfigError, match=r"num_hidden_layers=2000, inner_group_num=1:.*no model"):
        load_pretrained(tmp_path)


def test_a_longest_text_below_one_cuts_nothing(folder, caplog):
    """In transformers it matters only to a call that asks for truncation, and fails there."""
    (folder / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "pre_tokenizer":'
        ' {"type": "Whitespace"}}'
    )
    (folder / "tokenizer_config.json").write_text('{"model_max_length": -5}')
    assert load_tokenizer(folder)("a a a")["input_ids"].shape == (1, 3)
    assert "model_max_length=-5 cuts nothing" in caplog.text


def test_a_field_that_cannot_be_printed_is_noticed_in_escapes(folder, caplog):
    edit_config(folder, **{"\x1b[2J": 1})
    load_pretrained(folder)
    assert (
        r"'\x1b[2J': not a field of transformers' bert" in caplog.text and "\x1b" not in caplog.text
    )
