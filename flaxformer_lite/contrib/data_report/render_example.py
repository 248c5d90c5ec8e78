"""Renders an example of any objective as text: the inputs of the model, and the tokens with a loss.

The text is styled for a terminal by rich.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from rich.text import Text

from flaxformer_lite.files.read import escape_unprintable
from flaxformer_lite.objectives.sums import SOURCE
from flaxformer_lite.text.tokenizer import Tokenizer

# Arrays that mark padding and separate texts.
MASKS = (
    "segment_ids",
    "attention_mask",
    "token_type_ids",
)
SHOWN_ELSEWHERE = ("masked_positions", "answers")  # shown as part of the labels
MOST_NUMBERS = 12  # the most numbers shown of an array
Arrays = Mapping[str, np.ndarray]


class Renderer:
    """Renders the arrays of an example as text.

    Args:
      tokenizer: the tokenizer of the ids.
      labels: names of the classes, for objectives that have some.
    """

    def __init__(self, tokenizer: Tokenizer, labels: Sequence[str] = ()):
        self._pieces = tokenizer.pieces()
        self._labels = labels
        self._special = {i: f"<{i}>" for i in tokenizer.specials()}
        self._special |= {i: name for name, i in tokenizer.spelled.items()}

    def lines(self, example: Mapping[str, Arrays]) -> Iterator[tuple[str, Text]]:
        """Yields a name and a text for each informative array.

        A bar separates texts that share a row, and `«»` encloses tokens with a loss. Special tokens
        are shown by name.

        Args:
          example: the {"inputs", "targets"} of one row, without a batch axis.
        """
        arrays = {**example["inputs"], **example["targets"]}
        ids = arrays.get("input_ids")
        if ids is not None and ids.ndim == 2:  # multiple choice: one text per choice
            of_choice = {name for name, x in arrays.items() if x.ndim == 2 and len(x) == len(ids)}
            for number in range(len(ids)):
                chosen = {name: arrays[name][number] for name in of_choice}
                for name, text in self._lines(chosen):
                    yield f"{name}[{number}]", text
            arrays = {name: x for name, x in arrays.items() if name not in of_choice}
        yield from self._lines(arrays)

    def _lines(self, arrays: Arrays) -> Iterator[tuple[str, Text]]:
        def order(name: str) -> tuple[bool, bool]:
            return name != "input_ids", name == "weights"  # input_ids first, weights last

        for name in sorted(arrays, key=order):
            array = arrays[name]
            if name.endswith(MASKS) or name in SHOWN_ELSEWHERE:
                continue
            if name.startswith(SOURCE):
                if array:
                    yield "source", Text(name.removeprefix(SOURCE))
                continue
            yield name, self._value(name, array, arrays)

    def _value(self, name: str, array: np.ndarray, arrays: Arrays) -> Text:
        """Renders one array: classes by name, token ids as text, anything else as numbers."""
        if self._labels and name in ("label", "labels") and array.dtype.kind == "i":
            if not array.ndim:
                return Text(f"{int(array)} ({self._labels[int(array)]})")
            if name == "labels":
                return self._tags(array, arrays)
        if name.endswith("weights") and array.ndim and set(np.unique(array)) <= {0, 1}:
            return Text(f"1 for {int(array.sum())} of {len(array)}")
        holds_ids = name.endswith("ids") or name in ("labels", "noise")
        if not holds_ids or not array.ndim:
            return _numbers(array)
        if "masked_positions" in arrays and array.shape == arrays["masked_positions"].shape:
            return self._masked(array, arrays)
        return self._row(array, parts_of(name, arrays), _marks(array, arrays, name))

    def _row(self, ids: np.ndarray, parts: np.ndarray, marks: np.ndarray) -> Text:
        """Renders a row of ids [T], by the number of each token's text and whether it is marked."""
        text = Text()
        unmarked_style = "dim" if marks.any() else ""
        end = int(np.max(np.flatnonzero(parts), initial=-1)) + 1
        for part, positions in itertools.groupby(range(end), key=lambda at: int(parts[at])):
            if text:
                text.append(" │ ", "bold yellow")
            for marked, run in itertools.groupby(positions, key=lambda at: bool(marks[at])):
                tokens = ids[list(run)].tolist() if part else []
                if marked:
                    text.append("«", "bold green")
                    self._append(text, tokens, "green")
                    text.append("»", "bold green")
                else:
                    self._append(text, tokens, unmarked_style)
        if end < len(ids):
            text.append(f"  + {len(ids) - end} padding", "dim")
        return text

    def _append(self, text: Text, tokens: Sequence[int], style: str) -> None:
        """Appends tokens to a text, special ones by name."""
        for special, group in itertools.groupby(tokens, key=self._special.get):
            same = list(group)
            if special:
                text.append(special * len(same), "bold cyan")
            else:
                text.append(self.decode(same), style)

    def _masked(self, ids: np.ndarray, arrays: Arrays) -> Text:
        """Renders the labels of masked positions, `position«token»`."""
        shown = []
        for at, token, weight in zip(
            arrays["masked_positions"], ids, arrays["weights"], strict=True
        ):
            if weight:
                shown.append(f"{at}«{self.name(token)}»")
        return Text("  ".join(shown))

    def _tags(self, labels: np.ndarray, arrays: Arrays) -> Text:
        """Renders the labels of tokens, `token«label»`."""
        shown = []
        for token, tag, weight in zip(arrays["input_ids"], labels, arrays["weights"], strict=True):
            if weight:
                shown.append(f"{self.name(token).strip()}«{self._labels[tag]}»")
        return Text("  ".join(shown))

    def name(self, token: int) -> str:
        """Returns the text of a token, or the name of a special token."""
        return self._special.get(int(token)) or self.decode([token])

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ordinary tokens in one line, with control characters escaped."""
        pieces = b"".join(self._pieces[int(i)] for i in ids)
        text = pieces.decode(errors="replace").replace("\n", "↵")
        return escape_unprintable(text)


def _numbers(array: np.ndarray) -> Text:
    shown = ", ".join(f"{x:g}" for x in array.reshape(-1)[:MOST_NUMBERS].tolist())
    if array.size > MOST_NUMBERS:
        shown += f", ... ({array.size})"
    return Text(shown)


def parts_of(name: str, arrays: Arrays) -> np.ndarray:
    """Returns the number of each token's text, from 1, or 0 for padding, int32 [T]."""
    ids = arrays[name]
    side = "decoder_" if name.startswith("decoder_") else ""
    if name == "labels" and "decoder_segment_ids" in arrays:
        side = "decoder_"
    masks = {}
    for mask in MASKS:
        array = arrays.get(side + mask)
        if array is not None and array.shape == ids.shape:
            masks[mask] = array
    parts = masks.get("segment_ids", masks.get("attention_mask"))
    if parts is None:
        # A last token that repeats up to the end is padding.
        end = int(np.max(np.flatnonzero(ids != ids[-1]), initial=-1)) + 1
        if len(ids) - end <= 1:
            end = len(ids)
        return (np.arange(len(ids)) < end).astype(np.int32)
    if "token_type_ids" in masks:
        return parts + np.where(parts > 0, masks["token_type_ids"], 0)
    return parts


def _marks(ids: np.ndarray, arrays: Arrays, name: str) -> np.ndarray:
    """Returns whether each token has a loss, or is within the answer's span, bool [T]."""
    if name == "input_ids" and "start" in arrays and "end" in arrays:
        at = np.arange(len(ids))
        return (at >= arrays["start"]) & (at <= arrays["end"])
    if name == "labels":
        for key in ("answers", "weights"):
            if key in arrays and arrays[key].shape == ids.shape:
                return arrays[key] > 0
    return np.zeros(len(ids), bool)
