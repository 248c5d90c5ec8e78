"""Checks that no token sees what it may not.

That is the future, padding, other texts of a batch, other documents of a row, and what lies outside
its window.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import (
    EXACT,
    ROUNDING,
    Finding,
    relative_difference,
    tree_difference,
)
from flaxformer_lite.contrib.verify.subject import SHORT, Inputs, Outputs, Subject, of_tokens

Kept = np.ndarray | tuple[slice, ...]  # an index of the tokens that are compared
PADDING = 5  # tokens
BY_COLUMN = (
    "positions count columns, padding among them, as in the reference; pass position_ids, or pad on"
    " the right"
)


def check_causal(subject: Subject) -> Iterator[Finding]:
    """No later token changes the outputs of earlier ones, nor the gradients of their loss."""
    if subject.is_causal is False:
        return
    inputs = subject.inputs(subject.draw(2))
    ids = inputs[subject.written]
    cut = subject.length // 2
    later = np.concatenate([ids[:, :cut], subject.draw(2, 1)[:, cut:]], axis=1)
    changed = inputs | {subject.written: later}
    if subject.is_causal is None and _reads_ahead(subject, inputs):
        why = "the first token sees the last, as in an encoder; pass causal=True if it must not"
        yield Finding("causal", None, EXACT, why)
        return
    keep = np.zeros(ids.shape, bool)
    keep[:, :cut] = True
    yield from _unchanged("causal", subject, inputs, changed, keep)


def _reads_ahead(subject: Subject, inputs: Inputs) -> bool:
    """Returns whether the last token changes the outputs of the first."""
    changed = {name: ids.copy() for name, ids in inputs.items()}
    ids = changed[subject.written]
    ids[:, -1] = ids[:, 0]
    first, second = (_take(subject.run(one), np.s_[:, :1]) for one in (inputs, changed))
    return _largest(first, second) > EXACT


def check_windows(subject: Subject) -> Iterator[Finding]:
    """A layer with a sliding window reads as many columns as its window, and no more."""
    cfg = subject.cfg
    kind = cfg.kinds[0]
    has_windows = any(kind.window for kind in cfg.kinds)
    if not has_windows or kind.mixer or cfg.mixer or cfg.skeleton == "encoder_decoder":
        return
    pattern = (dataclasses.replace(kind, window=SHORT),)
    layers = {"windows": (0,), "pattern": pattern, f"{cfg.skeleton}_layers": 1}
    one = subject.with_config({"scan": False}).with_config(layers)
    ids = one.draw(1)
    changed = one.draw(1, 1)
    changed[:, 1:] = ids[:, 1:]
    states = [one.run({"input_ids": x})["last_hidden_state"] for x in (ids, changed)]
    reached = np.flatnonzero((states[0] != states[1]).any(axis=(0, 2)))
    why = f"columns too many or too few that the first layer reads in a window of {SHORT}"
    yield Finding("window", float(abs(reached.max(initial=-1) + 1 - SHORT)), EXACT, why)


def check_padding(subject: Subject) -> Iterator[Finding]:
    """A text has the same outputs alone, padded on either side, and beside any other text."""
    subject.check_takes("attention_mask")
    texts = subject.draw(3)
    short = subject.length - PADDING
    if short < 1:
        raise ConfigError(
            f"texts of {subject.length} tokens have no room for {PADDING} tokens of padding; the"
            " table of positions is too short."
        )
    text = texts[:1, subject.length - short :]  # with its end
    target = subject.draw(2, 1)

    def inputs_for(ids: np.ndarray, **more: np.ndarray) -> Inputs:
        if subject.reads_source:
            more["decoder_input_ids"] = target[: len(ids)]
        return {"input_ids": ids, **more}

    alone = subject.run(inputs_for(text))
    pad = 0
    if subject.is_family and (subject.cfg.pad_token_id or 0) < subject.vocab_size:
        pad = subject.cfg.pad_token_id or 0
    empty = np.full((1, PADDING), pad, np.int32)
    known = subject.known_reasons
    keep = np.ones((2, subject.length), np.int32)
    for side in ("right", "left"):
        row = [text, empty]
        kept: Kept = np.s_[:1, :short]
        keep[0, short:] = 0
        if side == "left":
            row = row[::-1]
            kept = np.s_[:1, PADDING:]
            keep[0] = keep[0, ::-1]
        if subject.reads_source:
            kept = np.s_[:1, :]
        first = np.concatenate(row, axis=1)
        padded = inputs_for(np.concatenate([first, texts[1:2]]), attention_mask=keep)
        outputs = subject.run(padded)
        difference = _largest(_take(outputs, kept), of_tokens(alone))
        why = known
        if side == "right":
            difference = max(difference, _largest(_texts(outputs), _texts(alone)))
            mate = inputs_for(np.concatenate([first, texts[2:]]), attention_mask=keep[[0, 0]])
            other = subject.run(mate)
            apart = _largest(_take(other, kept), _take(outputs, kept))
            apart = max(apart, _largest(_texts(other), _texts(outputs)))
            yield Finding("batch-mate", apart, EXACT, *known)
        elif not known and subject.is_family and subject.cfg.encoder_layers:
            positions = np.maximum(np.cumsum(keep, axis=1) - 1, 0).astype(np.int32)
            counted = subject.run(padded | {"position_ids": positions})
            if _largest(_take(counted, kept), of_tokens(alone)) <= ROUNDING < difference:
                why = (BY_COLUMN, True)
        yield Finding(f"padding on the {side}", difference, ROUNDING, *why)


def check_packing(subject: Subject) -> Iterator[Finding]:
    """Packed documents have the outputs and gradients that they have alone."""
    subject.check_takes("segment_ids")
    half = subject.length // 2
    inputs = {name: ids[:, : 2 * half] for name, ids in subject.inputs(subject.draw(2)).items()}
    documents = np.repeat(np.array([[1, 2], [1, 2]], np.int32), half, axis=1)
    packed = inputs | subject.segments(documents)
    other = subject.inputs(subject.draw(2, 1)[:, : 2 * half])
    changed = dict(packed)
    for name, ids in inputs.items():
        changed[name] = np.concatenate([ids[:, :half], other[name][:, half:]], axis=1)
    known = subject.known_reasons
    first = documents == 1
    for finding in _unchanged("packed documents", subject, packed, changed, first):
        if known:
            finding = finding._replace(why=known[0], published=True)
        yield finding
    # both documents of the first row, each in a row of its own
    apart = subject.segments(np.where(first, 1, 0).astype(np.int32))
    for name, ids in inputs.items():
        apart[name] = np.concatenate([ids[:1].reshape(2, half), np.zeros_like(ids[:, :half])], 1)
    in_one = np.array([[True], [False]]) & (documents > 0)
    together, due = subject.gradients(packed, in_one)
    alone, gradients = subject.gradients(apart, first)
    outputs = {name: value.reshape(2, half, -1) for name, value in _take(together, in_one).items()}
    separate = {name: value.reshape(2, half, -1) for name, value in _take(alone, first).items()}
    name = "packed equal separate"
    yield Finding(f"{name}: outputs", _largest(outputs, separate), ROUNDING, *known)
    yield Finding(f"{name}: gradients", tree_difference(gradients, due), ROUNDING, *known)


def _unchanged(
    name: str, subject: Subject, inputs: Inputs, changed: Inputs, keep: np.ndarray
) -> Iterator[Finding]:
    """Compares the tokens that are kept, and the gradients of their loss, bit for bit."""
    first, first_gradients = subject.gradients(inputs, keep)
    second, second_gradients = subject.gradients(changed, keep)
    kept = _largest(_take(second, keep), _take(first, keep))
    yield Finding(f"{name}: outputs", kept, EXACT)
    bound = EXACT
    why = ""
    if subject.is_family and subject.cfg.feed_forwards:
        bound = ROUNDING
        why = "experts add up the tokens that chose them in another order"
    difference = tree_difference(second_gradients, first_gradients)
    yield Finding(f"{name}: gradients", difference, bound, why)


def _take(outputs: Outputs, kept: Kept) -> Outputs:
    return {name: value[kept] for name, value in of_tokens(outputs).items()}


def _texts(outputs: Outputs) -> Outputs:
    """Returns the values of the first text as a whole."""
    tokens = of_tokens(outputs)
    return {name: value[:1] for name, value in outputs.items() if name not in tokens}


def _largest(got: Outputs, due: Outputs) -> float:
    differences = [relative_difference(got[name], due[name]) for name in due]
    return max(differences, default=0.0)
