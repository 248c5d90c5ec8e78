"""Numbers that travel with a document: each row has those of its own document, on either side of the split."""

import dataclasses
import json

import numpy as np
import pytest

from flaxformer_lite.config import ConfigError, DataConfig, TokenizerConfig
from flaxformer_lite.data.corpus import open_corpus, open_records
from flaxformer_lite.objectives import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbered(Objective):
    numbers = ("label", "score")

    def make_example(self, records, index, rng):
        raise NotImplementedError

    def loss(self, outputs, targets, *, chunks):
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Numbered):
    fields = ("text", "reply")


def config(folder, lines):
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tokenizer = TokenizerConfig(name="bytes")
    return DataConfig(path=str(path), cache=str(folder / "cache"), length=2, eval_fraction=0.25, tokenizer=tokenizer)


def lines(count):
    """The label is how often the first letter stands; blank lines are left out with their numbers."""
    for n in range(count):
        yield {"text": "xyz"[n % 3] * (n + 1), "reply": "r" * (n + 1), "label": n + 1, "score": n / 2, "more": [n]}
        yield {"text": " ", "reply": "", "label": 99, "score": 0}


@pytest.mark.parametrize("objective", [Numbered(), Pairs()])
@pytest.mark.parametrize("count", [40, 3])
def test_each_row_has_the_numbers_of_its_document(tmp_path, objective, count):
    cfg = config(tmp_path, lines(count))
    corpus = open_corpus(cfg, objective.fields, objective.numbers)
    seen = []
    for split in ("train", "eval"):
        records = open_records(cfg, corpus, objective, split)
        for row in range(len(records)):
            (piece,) = records.row(row)
            whole = records.number(row, "label")
            assert len(piece) == min(whole, 2), "no text is cut in two by the split, and a row loses its end"
            assert records.number(row, "score") == (whole - 1) / 2
            seen.append(int(whole))
        assert records.numbers["label"].dtype == np.int64 and records.numbers["score"].dtype == np.float64
    assert sorted(seen) == sorted(len(objective.fields) * list(range(1, count + 1)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"label": "good", "score": 0},
            r"lines.jsonl:3: no 64-bit number under 'label' \('good'\); classes are numbered",
        ),
        ({"score": 0}, r"lines.jsonl:3: no 64-bit number under 'label' \(keys: 'text', 'score'\)"),
        ({"label": 1, "score": float("nan")}, r"under 'score' \(nan\)"),
        ({"label": 2**64, "score": 0}, r"under 'label' \(18446744073709551616\)"),
    ],
)
def test_what_is_no_number(tmp_path, wrong, message):
    cfg = config(tmp_path, [*lines(1), {"text": "y", **wrong}])
    with pytest.raises(ConfigError, match=message):
        open_corpus(cfg, Numbered.fields, Numbered.numbers)


def test_text_without_numbers(tmp_path):
    (tmp_path / "plain.txt").write_text("some text")
    cfg = dataclasses.replace(config(tmp_path, lines(2)), path=str(tmp_path / "plain.txt"))
    with pytest.raises(
        ConfigError, match=r"plain.txt is not jsonl; .* lines of jsonl with 'text' and 'label' and 'score'"
    ):
        open_corpus(cfg, Numbered.fields, Numbered.numbers)
    with pytest.raises(
        ConfigError, match=r"data.corpus='docstrings': this objective reads text and label and score, which no"
    ):
        open_corpus(dataclasses.replace(cfg, path="", corpus="docstrings"), Numbered.fields, Numbered.numbers)
