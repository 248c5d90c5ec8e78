"""Compares what engines found in our folders with what we compute, and draws the table."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.opens.asked import TEXTS, TOLERANCE

KINDS = ("causal", "seq2seq", "encoder", "classifier", "tagger", "embedder")
# How a cell of the table says it.
EQUAL = "equal"
DIFFERS = "differs"
NOT_READ = "not read"
UNKNOWN = ""


class Cell(NamedTuple):
    """What an engine made of a folder: a word for the table, and why, if it is not equal."""

    word: str
    why: str = ""


def compare(root: Path, engine: str, kind: str, name: str, written_by: str = "ours") -> Cell:
    """Returns what an engine made of `root/ours/KIND/NAME`, or of the folder of transformers."""
    at = root / "answers" / written_by / engine / f"{kind}.{name}"
    if not Path(f"{at}.json").exists():
        return Cell(UNKNOWN)
    theirs = load(at)
    ours = load(root / "ours" / kind / name)
    if "unknown" in theirs:
        return Cell(UNKNOWN)
    if "failed" in theirs:
        return Cell(NOT_READ, theirs["failed"])
    differences = [
        *unequal_ids(ours, theirs),
        *unequal_predictions(ours, theirs),
        *unequal_numbers(ours, theirs),
        *unequal_tokens(ours, theirs),
    ]
    if differences:
        return Cell(DIFFERS, "; ".join(differences))
    return Cell(EQUAL)


def load(at: Path) -> dict[str, Any]:
    found = json.loads(Path(f"{at}.json").read_text())
    with np.load(f"{at}.npz") as arrays:
        return found | dict(arrays)


def unequal_ids(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    pairs = zip(ours.get("ids", ()), theirs.get("ids", ()), strict=False)
    count = sum(mine != other for mine, other in pairs)
    wrong = [f"ids of {count} of {len(TEXTS)} texts"] if count else []
    if "chat" in theirs and theirs["chat"] != ours["chat"]:
        wrong.append("ids of a chat")
    return wrong


def unequal_predictions(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Compares what trained models say: answers, classes, probabilities, tags, vectors."""
    wrong = []
    if "answers" in theirs and theirs["answers"] != ours["answers"]:
        wrong.append(f"answers {theirs['answers']}, not {ours['answers']}")
    for mine, other in zip(ours.get("rows", ()), theirs.get("rows", ()), strict=False):
        for name, value in other.items():
            expected = mine[name]
            if isinstance(value, float):
                same = abs(value - expected) <= TOLERANCE
            else:
                same = value == expected
            if not same:
                wrong.append(f"{name} {value}, not {expected}")
    if "vectors" in theirs:
        difference = float(np.abs(theirs["vectors"] - ours["vectors"]).max())
        if not difference <= TOLERANCE:
            wrong.append(f"vectors by {difference:.0e}")
    return wrong


def unequal_numbers(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Compares logits, log-probabilities of the likeliest tokens, and hidden states."""
    worst: dict[str, float] = {}
    for name, found in theirs.items():
        what, _, number = name.partition("/")
        if what not in ("logits", "hidden", "top_logprobs"):
            continue
        if what == "top_logprobs":
            logits = ours[f"logits/{number}"].astype(np.float64)
            logprobs = logits - np.logaddexp.reduce(logits)
            expected = logprobs[theirs[f"top_ids/{number}"]]
        else:
            expected = ours[name]
            found = found[: len(expected)]  # a table that is padded to a round number
        difference = np.abs(found - expected).max() / np.abs(expected).max()
        which = "a long text" if int(number) == len(TEXTS) - 1 else "short texts"
        worst[which] = max(worst.get(which, 0.0), float(difference))
    return [f"{x:.0e} of {which}" for which, x in worst.items() if not x <= TOLERANCE]


def unequal_tokens(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    wrong = []
    if "greedy" in theirs:
        count = min(len(theirs["greedy"]), len(ours["greedy"]))
        pairs = zip(ours["greedy"], theirs["greedy"], strict=False)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), count)
        if same < len(ours["greedy"]) and not ended(ours, theirs):
            wrong.append(f"greedy tokens from number {same + 1}")
    if "stops" in theirs and set(theirs["stops"]) != set(ours["stops"]):
        wrong.append(f"ends at {theirs['stops']}, not {ours['stops']}")
    return wrong


def ended(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Returns whether the engine wrote what we did until a token that ends a text."""
    written = theirs["greedy"]
    following = ours["greedy"][len(written) :][:1]
    return ours["greedy"][: len(written)] == written and following[0] in ours["stops"]
