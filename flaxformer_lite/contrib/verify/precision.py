"""Checks of the numbers after saving, in few bits and in half precision."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import EXACT_BOUND, Finding, compare
from flaxformer_lite.contrib.verify.subject import Outputs, Subject
from flaxformer_lite.nn.adapters.merge import dequantize_params
from flaxformer_lite.nn.modules.layout import unstack_layers
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.quantized_params import with_scheme
from flaxformer_lite.save_model import save_pretrained

# The largest error of a matrix by form, relative to its largest number: half of the widest step.
HALF_STEPS = {"int8": 0.5 / 127, "int4": 0.5 / 7, "nf4": 0.152}
BFLOAT16_ROUNDING = 2.0**-9  # bfloat16 rounds by at most this share of a number
ROUNDINGS_PER_LAYER = 12  # in a layer, which add up like a random walk
CHANCE_FACTOR = 4.0  # times what is expected
GROWTH_FACTOR = 3.0  # times the error of the first positions
FAR_POSITION = 4096  # a position where bfloat16 counts in steps of 16


def check_saving(subject: Subject) -> Iterator[Finding]:
    """Checks that weights are loaded bit for bit as they were saved."""
    if subject.cfg.quantize != "none" or subject.cfg.adapter is not None:
        raise ConfigError("quantized matrices and adapters are restored or merged when saved.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_pretrained(path, subject.model, dict(subject.params))
        _, loaded = load_pretrained(path, subject.cfg.head)
    yield compare("save and load", loaded, unstack_layers(subject.params), bound=EXACT_BOUND)


def check_quantized(subject: Subject) -> Iterator[Finding]:
    """Matrices in few bits are within half a step, and multiply as the matrices they stand for."""
    if subject.cfg.quantize != "none":
        raise ConfigError(f"the matrices are held in {subject.cfg.quantize} already.")
    inputs = subject.inputs(subject.draw(2))
    for form, half_step in HALF_STEPS.items():
        model, stored = with_scheme(subject.model, dict(subject.params), form)
        params = place_params(model.cfg, stored)
        _, held = dequantize_params(model, params)
        bound = half_step * (1 + 1e-3)
        yield compare(f"quantized {form}: matrices", held, subject.params, bound=bound)
        got = dataclasses.replace(subject, model=model, params=params).run(inputs)
        yield compare(f"quantized {form}: outputs", got, subject.program(held, inputs))


def check_half(subject: Subject) -> Iterator[Finding]:
    """bfloat16 errs as its rounding lets expect, at late positions as at early ones."""
    half = subject.with_config(dtype="bfloat16")
    layers = subject.cfg.encoder_layers + subject.cfg.decoder_layers
    span = subject.cfg.position.span(subject.cfg.max_length)
    last = max(subject.cfg.max_length, FAR_POSITION) if span is None else span.stop
    errors = []
    for first in (0, last - subject.length):
        positions_BT = np.tile(np.arange(first, first + subject.length, dtype=np.int32), (2, 1))
        inputs = subject.inputs(subject.draw(2), position_ids=positions_BT)
        if subject.reads_source:
            inputs["decoder_position_ids"] = positions_BT
        errors.append(_typical_error(half.run(inputs), subject.run(inputs)))
    near, far = errors
    bound = CHANCE_FACTOR * BFLOAT16_ROUNDING * (ROUNDINGS_PER_LAYER * (1 + layers)) ** 0.5
    yield Finding("bfloat16", near, bound, "of a typical number, relative to a typical number")
    why = f"of positions from {last - subject.length:,} on; the bound follows the first positions"
    yield Finding(
        "bfloat16 far from the start", far, GROWTH_FACTOR * max(near, BFLOAT16_ROUNDING), why
    )


def _typical_error(got: Outputs, due: Outputs) -> float:
    """Returns the median error: experts are chosen anew where two are nearly equal."""
    errors = [0.0]
    for name, value in due.tokens.items():
        apart = np.median(np.abs(np.asarray(got.tokens[name], np.float32) - value))
        typical = max(np.median(np.abs(value)), np.finfo(np.float32).tiny)
        errors.append(float(apart / typical))
    return max(errors)
