import re

import numpy as np
import pytest

from flaxformer_lite.cli import command_line
from flaxformer_lite.contrib.data_report.render_example import Renderer
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start.adopt import read_experiment
from flaxformer_lite.text import tokenizer

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
BYTES = tokenizer.Bytes()


def ids(text, length=0):
    found = BYTES.encode(text)
    return np.asarray([*found, *[BYTES.pad_id] * (length - len(found))], np.int32)


def shown(inputs, targets, labels=()):
    return {
        name: str(text)
        for name, text in Renderer(BYTES, labels).lines({"inputs": inputs, "targets": targets})
    }


def test_borders_losses_and_padding():
    example = {"input_ids": ids("abcde", 8), "segment_ids": np.asarray([1, 1, 2, 2, 2, 0, 0, 0])}
    targets = {
        "labels": ids("bcdef", 8),
        "weights": np.asarray([1, 0, 1, 1, 0, 0, 0, 0], np.float32),
    }
    lines = shown(example, targets)
    assert lines == {
        "input_ids": "ab │ cde  + 3 padding",
        "labels": "«b»c │ «de»f  + 3 padding",
        "weights": "1 for 3 of 8",
    }


def test_masked_tokens_by_their_places():
    masked = ids("abcd")
    masked[2] = BYTES.mask_id
    inputs = {
        "input_ids": masked,
        "segment_ids": np.ones(4, int),
        "masked_positions": np.asarray([2, 0]),
    }
    lines = shown(inputs, {"labels": ids("c "), "weights": np.asarray([1, 0], np.float32)})
    assert lines["input_ids"] == "ab[MASK]d" and lines["labels"] == "2«c»"


def test_choices_classes_and_spans():
    two = {
        "input_ids": np.stack([ids("ab", 4), ids("c", 4)]),
        "attention_mask": np.asarray([[1, 1, 0, 0], [1, 0, 0, 0]]),
    }
    lines = shown(two, {"label": np.int32(1), "weights": np.float32(1)}, ("ham", "spam"))
    assert lines == {
        "input_ids[0]": "ab  + 2 padding",
        "input_ids[1]": "c  + 3 padding",
        "label": "1 (spam)",
        "weights": "1",
    }
    one = {"input_ids": ids("to me"), "attention_mask": np.ones(5, int)}
    assert shown(one, {"start": np.int32(3), "end": np.int32(4)})["input_ids"] == "to «me»"
    tags = {
        "labels": np.asarray([0, 0, 0, 1, 0]),
        "weights": np.asarray([1, 0, 0, 1, 0], np.float32),
    }
    assert shown(one, tags, ("O", "PER"))["labels"] == "t«O»  m«PER»"


def test_nothing_that_a_terminal_obeys():
    lines = shown({"input_ids": ids("a\x1b[2Jb\n\tc")}, {})
    assert lines["input_ids"] == r"a\x1b[2Jb↵\tc"


@pytest.mark.parametrize(
    "page",
    [
        "gpt2_tiny",
        "bert_tiny",
        "t5_tiny",
        "ul2_tiny",
        "electra_tiny",
        "word2vec",
        "classify",
        "tag",
        "qa",
        "choose",
        "sentences",
        "rerank",
        "dpo",
        "instruct",
        "translate",
        "transformer_base",
    ],
)
def test_every_objective_shows_all_of_its_tokens(page):
    cfg = read_experiment(command_line.config([f"--config={page}", "--config.data.length=64"]))
    example = dummy.example(cfg)
    classes = [str(number) for number in range(10)] if hasattr(cfg.objective, "labels") else []
    lines = dict(Renderer(BYTES, classes).lines(example))
    for name, array in example["inputs"].items():
        if name.endswith("input_ids"):
            texts = (
                [lines[name]]
                if array.ndim == 1
                else [lines[f"{name}[{row}]"] for row in range(len(array))]
            )
            for text, row in zip(texts, np.atleast_2d(array), strict=True):
                due = (
                    "".join(BYTES.decode([i]) for i in row)
                    .replace("\n", "↵")
                    .replace("\0", r"\x00")
                )
                bare = re.sub(r"«|»| │ |  \+ \d+ padding$|\[[A-Z]+\]|<extra_id_\d+>", "", str(text))
                assert bare == due
