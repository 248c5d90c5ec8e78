"""Checks that no token sees what it may not.

That is the future, padding, other texts of a batch, other documents of a row, and what lies outside
its window.
"""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import (
    EXACT_BOUND,
    ROUNDING_BOUND,
    Finding,
    compare,
    tree_difference,
)
from flaxformer_lite.contrib.verify.subject import WINDOW_TOKENS, Inputs, Subject
from flaxformer_lite.types import Array

PADDING_TOKENS = 5  # tokens
BY_COLUMN = (
    "positions count columns, padding among them, as in the reference; pass position_ids, or pad on"
    " the right"
)


def check_causal(subject: Subject) -> Iterator[Finding]:
    """No later token changes the outputs of earlier ones, nor the gradients of their loss."""
    if subject.is_causal is False:
        return
    length = subject.length
    # Each row is changed from another column on, as a leak may begin late or stay in a block.
    cuts = np.unique([min(2, length - 1), length // 2, length - 1])[:, None]
    keep = np.arange(length) < cuts
    inputs = subject.inputs(np.repeat(subject.draw(1), len(cuts), axis=0))
    ids = inputs[subject.written]
    later = subject.draw(1, 1)
    later[:, -1] = later[:, 0]  # and not the token that ends every text
    changed = inputs | {subject.written: np.where(keep, ids, later)}
    if subject.is_causal is None:
        first, last = (subject.run(x).of_row(-1, slice(1)) for x in (inputs, changed))
        if tree_difference(last, first) > EXACT_BOUND:
            why = "the first token sees the last, as in an encoder; pass causal=True if it must not"
            yield Finding("causal", None, EXACT_BOUND, why)
            return
    yield from _compare_kept("causal", subject, inputs, changed, keep)


def check_windows(subject: Subject) -> Iterator[Finding]:
    """A layer with a sliding window reads as many columns as its window, and no more."""
    cfg = subject.cfg
    kind = cfg.kinds[0]
    has_windows = any(kind.window for kind in cfg.kinds)
    if not has_windows or kind.mixer or cfg.mixer or cfg.skeleton == "encoder_decoder":
        return
    pattern = (dataclasses.replace(kind, window=WINDOW_TOKENS),)
    one_layer = {f"{cfg.skeleton}_layers": 1, "windows": (0,), "pattern": pattern}
    one = subject.with_config(scan=False, **one_layer)
    ids = one.draw(1)
    changed = np.concatenate([one.draw(1, 1)[:, :1], ids[:, 1:]], axis=1)
    states = [one.run(one.inputs(x)).tokens["last_hidden_state"] for x in (ids, changed)]
    reached = np.flatnonzero((states[0] != states[1]).any(axis=(0, 2)))
    why = f"columns too many or too few that the first layer reads in a window of {WINDOW_TOKENS}"
    yield Finding(
        "window", float(abs(reached.max(initial=-1) + 1 - WINDOW_TOKENS)), EXACT_BOUND, why
    )


def check_padding(subject: Subject) -> Iterator[Finding]:
    """A text has the same outputs alone, padded on either side, and beside any other text."""
    if subject.length <= PADDING_TOKENS:
        raise ConfigError(
            f"texts of {subject.length} tokens have no room for {PADDING_TOKENS} tokens of padding;"
            " the table of positions is too short."
        )
    text = subject.draw(1)[:, PADDING_TOKENS:]
    pad = getattr(subject.cfg, "pad_token_id", 0) or 0
    # The text is padded on the left in row 0, and on the right in row 2; row 1 has another.
    ids = np.full((3, subject.length), min(pad, subject.cfg.vocab_size - 1), np.int32)
    ids[0, PADDING_TOKENS:] = ids[2, :-PADDING_TOKENS] = text
    keep = np.ones_like(ids)
    keep[0, :PADDING_TOKENS] = keep[2, -PADDING_TOKENS:] = 0
    columns = [slice(PADDING_TOKENS, None), slice(-PADDING_TOKENS)]
    if subject.reads_source:
        columns = [slice(None), slice(None)]

    def run(mate: int, **more: np.ndarray) -> list[tuple[list[Array], list[Array]]]:
        rows = np.concatenate([ids[:1], subject.draw(1, mate), ids[2:]])
        outputs = subject.run(subject.inputs(rows, 0, attention_mask=keep, **more))
        return [outputs.of_row(0, columns[0]), outputs.of_row(2, columns[1])]

    left, right = run(1)
    beside = run(2)
    alone = subject.run(subject.inputs(text)).of_row(0, slice(None))
    yield compare("batch-mate", beside, [left, right], bound=EXACT_BOUND)
    yield compare("padding on the right", right, alone)
    why: tuple[()] | tuple[str, bool] = ()
    if subject.cfg.encoder_layers:
        positions = np.maximum(np.cumsum(keep, axis=1) - 1, 0).astype(np.int32)
        counted, _ = run(1, position_ids=positions)
        if tree_difference(counted[0], alone[0]) <= ROUNDING_BOUND:
            why = (BY_COLUMN, True)
    # Tokens alone, as padding on the left moves a vector that is read by its column.
    yield compare("padding on the left", left[0], alone[0], *why)


def check_packing(subject: Subject) -> Iterator[Finding]:
    """Packed documents have the outputs and gradients that they have alone."""
    half = subject.length // 2
    first = np.arange(2 * half)[None] < half
    drawn = (subject.inputs(subject.draw(1, number), number) for number in (0, 1))
    row, other = ({name: ids[:, : 2 * half] for name, ids in inputs.items()} for inputs in drawn)
    packed = row | {name.replace("input", "segment"): np.where(first, 1, 2) for name in row}
    changed = packed | {name: np.where(first, row[name], other[name]) for name in row}
    yield from _compare_kept("packed documents", subject, packed, changed, first)
    together, due = subject.gradients(packed, np.ones_like(first))
    rows = {name: ids.reshape(2, half) for name, ids in row.items()}
    alone, gradients = subject.gradients(rows, np.ones((2, half), bool))
    outputs = jax.tree.map(lambda x, y: x.reshape(y.shape), together.tokens, alone.tokens)
    yield compare("packed equal separate: outputs", outputs, alone.tokens)
    yield compare("packed equal separate: gradients", gradients, due)


def _compare_kept(
    name: str, subject: Subject, inputs: Inputs, changed: Inputs, keep: np.ndarray
) -> Iterator[Finding]:
    """Compares the tokens that are kept, and the gradients of their loss, bit for bit."""
    (first, due), (second, gradients) = (subject.gradients(x, keep) for x in (inputs, changed))
    kept, expected = ([value[keep] for value in x.tokens.values()] for x in (second, first))
    yield compare(f"{name}: outputs", kept, expected, bound=EXACT_BOUND)
    # Experts add up the tokens that chose them in another order.
    bound = ROUNDING_BOUND if subject.cfg.feed_forwards else EXACT_BOUND
    yield compare(f"{name}: gradients", gradients, due, bound=bound)
