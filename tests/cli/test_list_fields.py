"""`train --config=PAGE --help` lists every field, with what its dataclass says of it."""

import dataclasses
import re

import pytest

from flaxformer_lite import config, pages
from flaxformer_lite.__main__ import main
from flaxformer_lite.cli import list_fields

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.fixture
def listed(capsys):
    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main([*args, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        found = re.findall(
            r"^  --(config\.[\w.]+)=(.*?)(?: {2,}|\n {10,})(.*(?:\n {10,}.*)*)", text, re.M
        )
        return text, {path: (value, " ".join(about.split())) for path, value, about in found}

    return run


def paths(values, path="config"):
    for name, value in values.items():
        yield from paths(value, f"{path}.{name}") if hasattr(value, "items") else [f"{path}.{name}"]


@pytest.mark.parametrize("command", ["train", "plan", "verify"])
def test_every_field_is_listed_in_its_section(command, listed):
    text, fields = listed(command, "--config=gpt2_tiny:rope", "--config.train.batch-size", "48")
    due = set(paths(pages.get_config("gpt2_tiny", "rope")))
    assert set(fields) == due
    for section in {path.rpartition(".")[0] for path in due} - {"config"}:
        assert f"\n{section}:\n" in text
    about = "int: sequences per step, over all devices and microbatches"
    assert fields["config.train.batch_size"] == ("48", about)


def test_types_choices_and_values(listed):
    _, fields = listed("train", "--config=gpt2_tiny:rope")
    fields = {name.removeprefix("config."): field for name, field in fields.items()}
    names = "adafactor, adamw, lion, muon, muon_spectral, schedule_free, sgd"
    assert fields["optimizer.name"][1].endswith(f"one of {names}")
    attention = fields["model.attention"][1]
    assert attention.count("auto") == 2 and "dense" in attention
    position, choices = fields["model.position.name"]
    assert position == "rope" and "alibi" in choices
    places = "tuple of str: one of embed, in, branch, out, final"
    assert fields["model.norm_at"] == ("('in', 'final')", places)
    assert fields["model.pad_token_id"][1].startswith("int or None: a decoder's")
    begun = fields["train.init_from"][1]
    assert begun.startswith("str: ") and "one of" not in begun


@pytest.mark.parametrize("part", ["Tokenizer", "Data", "Optimizer", "Train", "Mesh"])
def test_every_field_of_a_run_has_its_words(part):
    cls = getattr(config, f"{part}Config")
    said = list_fields.comments(cls)
    plain = [f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING]
    assert plain and all(said[name] for name in plain)


def test_a_wrong_config_is_still_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config=gpt2_tiny", "--config.train.keep=0", "--help"])
    assert ended.value.code == 2 and "train.keep=0: must be positive" in capsys.readouterr().err
