"""What a token may not see: the future, padding, other texts of a batch, other documents of a row,
and what lies outside its window."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from flaxformer_lite.config import LayerKind
from flaxformer_lite.verification.finding import (
    EXACT,
    ROUNDING,
    Finding,
    relative_difference,
    tree_difference,
)
from flaxformer_lite.verification.subject import SHORT, Inputs, Outputs, Subject, of_tokens

PADDING = 5  # tokens
# Parts that read padding or other texts as the published ones do, and how.
ROOM = "the tokens of a row or a batch share the room of an expert, padding and neighbors too"
PUBLISHED = {
    "block_sparse": "blocks and random links are counted in columns, padding among them",
    "local_global": "the blocks of the global tokens are counted in columns, padding among them",
}
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
    outputs = (of_tokens(subject.run(one)) for one in (inputs, changed))
    return _largest(*outputs, np.s_[:, :1]) > EXACT


def check_windows(subject: Subject) -> Iterator[Finding]:
    """A layer with a sliding window reads as many columns as its window, and no more."""
    cfg = subject.cfg
    if cfg.skeleton == "encoder_decoder" or cfg.share_layers:
        return
    checked = set[LayerKind]()
    for number, kind in enumerate(cfg.kinds):
        if not kind.window or kind.mixer or cfg.mixer or kind in checked:
            continue
        checked.add(kind)
        short = dataclasses.replace(kind, window=min(kind.window, SHORT))
        one = _one_layer(subject, number, short)
        ids = one.draw(1)
        changed = ids.copy()
        changed[:, 0] = one.draw(1, 1)[:, 0]
        first, second = (one.run({"input_ids": x})["last_hidden_state"] for x in (ids, changed))
        reached = int(np.flatnonzero((first != second).any(axis=(0, 2))).max(initial=-1)) + 1
        why = (
            f"columns by which the reach of layer {number} with a window of {short.window} differs"
        )
        yield Finding("window", float(abs(reached - (short.window or 0))), EXACT, why)


def _one_layer(subject: Subject, number: int, kind: LayerKind) -> Subject:
    """Returns the model with one of its layers alone, with options of this kind."""
    layers = subject.with_config(scan=False)
    side = subject.cfg.skeleton
    changes: dict[str, Any] = {f"{side}_layers": 1, "windows": (0,), "pattern": (kind,)}
    stack = {}
    for name, value in layers.params[side].items():
        if name == f"layer_{number}":
            stack["layer_0"] = value
        elif not name.startswith("layer_"):
            stack[name] = value
    params = {**layers.params, side: stack}
    return dataclasses.replace(layers, params=params).with_config(**changes)


def check_padding(subject: Subject) -> Iterator[Finding]:
    """A text has the same outputs alone, padded on either side, and beside any other text."""
    subject.check_takes("attention_mask")
    texts = subject.draw(3)
    short = subject.length - PADDING
    text = texts[:1, subject.length - short :]  # with its end
    target = subject.draw(2, 1)

    def inputs_for(ids: np.ndarray, **more: np.ndarray) -> Inputs:
        if subject.reads_source:
            more["decoder_input_ids"] = target[: len(ids)]
        return {"input_ids": ids, **more}

    alone = subject.run(inputs_for(text))
    pad = 0
    if subject.is_family:
        pad = subject.cfg.pad_token_id or 0
    empty = np.full((1, PADDING), pad, np.int32)
    known = _known_reasons(subject)
    for side, row in (("right", (text, empty)), ("left", (empty, text))):
        ids = np.concatenate([np.concatenate(row, axis=1), texts[1:2]])
        keep = np.ones(ids.shape, np.int32)
        kept = np.s_[:1, :short]
        keep[0, short:] = 0
        if side == "left":
            kept = np.s_[:1, PADDING:]
            keep[0] = keep[0, ::-1]
        if subject.reads_source:
            kept = np.s_[:1]
        padded = inputs_for(ids, attention_mask=keep)
        outputs = subject.run(padded)
        difference = _largest(_take(outputs, kept), of_tokens(alone))
        if side == "right":
            difference = max(difference, _largest(_texts(outputs), _texts(alone)))
            beside = inputs_for(
                np.concatenate([ids[:1], texts[2:]]),
                attention_mask=np.stack([keep[0], np.arange(subject.length) < SHORT]).astype(
                    np.int32
                ),
            )
            other = subject.run(beside)
            mate = _largest(_take(other, kept), _take(outputs, kept))
            mate = max(mate, _largest(_texts(other), _texts(outputs)))
            yield Finding("batch-mate", mate, EXACT, *known)
        why = known
        if side == "left" and difference > ROUNDING and not known and subject.is_family:
            positions = np.maximum(np.cumsum(keep, axis=1) - 1, 0).astype(np.int32)
            again = subject.run(padded | {"position_ids": positions})
            if _largest(_take(again, kept), of_tokens(alone)) <= ROUNDING:
                why = (BY_COLUMN, True)
        yield Finding(f"padding on the {side}", difference, ROUNDING, *why)


def _known_reasons(subject: Subject) -> tuple[()] | tuple[str, bool]:
    """Returns why the published model reads what it should not, if it does."""
    if not subject.is_family:
        return ()
    if any(not part.reads_one_token for part in subject.cfg.feed_forwards):
        return (ROOM, True)
    for name in subject.cfg.mixer_names:
        if name in PUBLISHED:
            return (PUBLISHED[name], True)
    return ()


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
    known = _known_reasons(subject)
    first = documents == 1
    for finding in _unchanged("packed documents", subject, packed, changed, first):
        yield finding._replace(why=(*known, "")[0], published=bool(known))
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
    yield Finding(f"{name}: gradients", tree_difference(second_gradients, first_gradients), EXACT)


def _take(outputs: Outputs, kept: Any) -> Outputs:
    return {name: value[kept] for name, value in of_tokens(outputs).items()}


def _texts(outputs: Outputs) -> Outputs:
    """Returns the values of the first text as a whole."""
    tokens = of_tokens(outputs)
    return {name: value[:1] for name, value in outputs.items() if name not in tokens}


def _largest(got: Outputs, due: Outputs, kept: Any = ...) -> float:
    differences = [relative_difference(got[name][kept], due[name][kept]) for name in due]
    return max(differences, default=0.0)
