"""Renders an example of any objective as text: the model's inputs, and the tokens with a loss."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from flaxformer_lite.objectives.sums import SOURCE
from flaxformer_lite.text.tokenizer import Tokenizer

# say where padding is and what belongs together
MASKS = (
    "segment_ids",
    "attention_mask",
    "token_type_ids",
)
SHOWN_ELSEWHERE = ("masked_positions", "answers")  # the places of labels
FEW = 12  # most numbers of an array that are shown
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
        self._special = {i: f"<{i}>" for i in tokenizer.specials()} | {
            i: s for s, i in tokenizer.spelled.items()
        }

    def lines(self, example: Mapping[str, Arrays]) -> Iterator[tuple[str, Text]]:
        """Yields a name and a text for each informative array.

        A bar separates texts that share a row, and `«»` encloses tokens with a loss. Special tokens
        are shown by name.

        Args:
          example: {"inputs", "targets"} of a row, without an axis for the batch.
        """
        arrays = {**example["inputs"], **example["targets"]}
        if (ids := arrays.get("input_ids")) is not None and ids.ndim == 2:  # the choices of a row
            of_choice = {name for name, x in arrays.items() if x.ndim == 2 and len(x) == len(ids)}
            for number in range(len(ids)):
                for name, text in self._lines({name: arrays[name][number] for name in of_choice}):
                    yield f"{name}[{number}]", text
            arrays = {name: x for name, x in arrays.items() if name not in of_choice}
        yield from self._lines(arrays)

    def _lines(self, arrays: Arrays) -> Iterator[tuple[str, Text]]:
        for name, array in sorted(
            arrays.items(), key=lambda item: (item[0] != "input_ids", item[0] == "weights")
        ):
            classes = self._labels and name in ("label", "labels") and array.dtype.kind == "i"
            if name.endswith(MASKS) or name in SHOWN_ELSEWHERE:
                continue
            if name.startswith(SOURCE):
                yield from [("source", Text(name.removeprefix(SOURCE)))] * bool(array)
                continue
            if classes and name == "labels" and array.ndim:
                yield name, self._tags(array, arrays)
            elif classes and not array.ndim:
                yield name, Text(f"{int(array)} ({self._labels[int(array)]})")
            elif name.endswith("weights") and array.ndim and set(np.unique(array)) <= {0, 1}:
                yield name, Text(f"1 for {int(array.sum())} of {len(array)}")
            elif not (name.endswith("ids") or name in ("labels", "noise")) or not array.ndim:
                shown = ", ".join(f"{x:g}" for x in array.reshape(-1)[:FEW].tolist())
                yield name, Text(f"{shown}, ... ({array.size})" if array.size > FEW else shown)
            elif "masked_positions" in arrays and array.shape == arrays["masked_positions"].shape:
                yield name, self._masked(array, arrays)
            else:
                yield name, self._row(array, parts_of(name, arrays), _marks(array, arrays, name))

    def _row(self, ids: np.ndarray, parts: np.ndarray, marks: np.ndarray) -> Text:
        text = Text()
        end = int(np.max(np.flatnonzero(parts), initial=-1)) + 1
        for part, positions in itertools.groupby(range(end), key=lambda at: int(parts[at])):
            if text:
                text.append(" │ ", "bold yellow")
            for marked, run in itertools.groupby(positions, key=lambda at: bool(marks[at])):
                chosen = ids[list(run)].tolist() if part else []
                text.append("«" if marked else "", "bold green")
                for special, group in itertools.groupby(chosen, key=self._special.get):
                    style = "green" if marked else "dim" if marks.any() else ""
                    same = list(group)
                    text.append(
                        *(
                            (special * len(same), "bold cyan")
                            if special
                            else (self.decode(same), style)
                        )
                    )
                text.append("»" if marked else "", "bold green")
        return text.append(f"  + {len(ids) - end} padding" if end < len(ids) else "", "dim")

    def _masked(self, ids: np.ndarray, arrays: Arrays) -> Text:
        masked = zip(arrays["masked_positions"], ids, arrays["weights"], strict=True)
        return Text("  ".join(f"{at}«{self.name(i)}»" for at, i, weight in masked if weight))

    def _tags(self, labels: np.ndarray, arrays: Arrays) -> Text:
        tagged = zip(arrays["input_ids"], labels, arrays["weights"], strict=True)
        return Text(
            "  ".join(
                f"{self.name(i).strip()}«{self._labels[of]}»" for i, of, weight in tagged if weight
            )
        )

    def name(self, token: int) -> str:
        """Returns the text of a token, or the name of a special one."""
        return self._special.get(int(token)) or self.decode([token])

    def decode(self, ids: Any) -> str:
        """Returns the text of ordinary tokens in one line, with control characters escaped."""
        text = (
            b"".join(self._pieces[int(i)] for i in ids).decode(errors="replace").replace("\n", "↵")
        )
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def parts_of(name: str, arrays: Arrays) -> np.ndarray:
    """Returns the number of each token's text, from 1, and 0 for padding, [T]."""
    ids = arrays[name]
    side = "decoder_" if name.startswith("decoder_") else ""
    if name == "labels" and "decoder_segment_ids" in arrays:
        side = "decoder_"
    masks = [arrays.get(side + mask) for mask in MASKS]
    segments, attention, types = (
        mask if mask is not None and mask.shape == ids.shape else None for mask in masks
    )
    kept = segments if segments is not None else attention
    if kept is None:
        # what repeats from there on is padding
        end = int(np.max(np.flatnonzero(ids != ids[-1]), initial=-1)) + 1
        return (np.arange(len(ids)) < (end if len(ids) - end > 1 else len(ids))).astype(np.int32)
    return kept + np.where(kept > 0, types, 0) if types is not None else kept


def _marks(ids: np.ndarray, arrays: Arrays, name: str) -> np.ndarray:
    """Returns whether each token has a loss, or is within the answer's span, [T]."""
    if name == "input_ids" and "start" in arrays and "end" in arrays:
        return (np.arange(len(ids)) >= arrays["start"]) & (np.arange(len(ids)) <= arrays["end"])
    found = [
        arrays[key]
        for key in ("answers", "weights")
        if key in arrays and arrays[key].shape == ids.shape
    ]
    return found[0] > 0 if found and name == "labels" else np.zeros(len(ids), bool)
