import re

import numpy as np
import pytest

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.render_example import Renderer
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
    lines = Renderer(BYTES, labels).lines({"inputs": inputs, "targets": targets})
    return {name: str(text) for name, text in lines}


def weights(*values):
    return np.asarray(values, np.float32)


def test_borders_losses_and_padding():
    example = {"input_ids": ids("abcde", 8), "segment_ids": np.asarray([1, 1, 2, 2, 2, 0, 0, 0])}
    targets = {"labels": ids("bcdef", 8), "weights": weights(1, 0, 1, 1, 0, 0, 0, 0)}
    assert shown(example, targets) == {
        "input_ids": "ab │ cde  + 3 padding",
        "labels": "«b»c │ «de»f  + 3 padding",
        "weights": "1 for 3 of 8",
    }


def test_masked_tokens_by_their_places():
    masked = ids("abcd")
    masked[2] = BYTES.mask_id
    places = {"segment_ids": np.ones(4, int), "masked_positions": np.asarray([2, 0])}
    targets = {"labels": ids("c "), "weights": weights(1, 0)}
    lines = shown({"input_ids": masked, **places}, targets)
    assert lines["input_ids"] == "ab[MASK]d" and lines["labels"] == "2«c»"


def test_choices_classes_and_spans():
    mask = np.asarray([[1, 1, 0, 0], [1, 0, 0, 0]])
    two = {"input_ids": np.stack([ids("ab", 4), ids("c", 4)]), "attention_mask": mask}
    lines = shown(two, {"label": np.int32(1), "weights": np.float32(1)}, ("ham", "spam"))
    rows = {"input_ids[0]": "ab  + 2 padding", "input_ids[1]": "c  + 3 padding"}
    assert lines == rows | {"label": "1 (spam)", "weights": "1"}
    one = {"input_ids": ids("to me"), "attention_mask": np.ones(5, int)}
    assert shown(one, {"start": np.int32(3), "end": np.int32(4)})["input_ids"] == "to «me»"
    tags = {"labels": np.asarray([0, 0, 0, 1, 0]), "weights": weights(1, 0, 0, 1, 0)}
    assert shown(one, tags, ("O", "PER"))["labels"] == "t«O»  m«PER»"


def test_nothing_that_a_terminal_obeys():
    lines = shown({"input_ids": ids("a\x1b[2Jb\n\tc")}, {})
    assert lines["input_ids"] == r"a\x1b[2Jb↵\tc"


TEXT = ("gpt2_tiny", "bert_tiny", "t5_tiny", "ul2_tiny", "electra_tiny", "word2vec")
TASKS = ("classify", "tag", "qa", "choose", "sentences", "rerank", "dpo", "instruct", "translate")
MARKS = r"«|»| │ |  \+ \d+ padding$|\[[A-Z]+\]|<extra_id_\d+>"


@pytest.mark.parametrize("page", TEXT + TASKS)
def test_every_objective_shows_all_of_its_tokens(page):
    cfg = read_experiment(command_line.config([f"--config={page}", "--config.data.length=64"]))
    example = dummy.example(cfg)
    classes = [str(number) for number in range(10)] if hasattr(cfg.objective, "labels") else []
    lines = dict(Renderer(BYTES, classes).lines(example))
    for name, array in example["inputs"].items():
        if not name.endswith("input_ids"):
            continue
        for number, row in enumerate(np.atleast_2d(array)):
            due = "".join(BYTES.decode([i]) for i in row)
            text = lines[name if array.ndim == 1 else f"{name}[{number}]"]
            bare = re.sub(MARKS, "", str(text))
            assert bare == due.replace("\n", "↵").replace("\0", r"\x00")
