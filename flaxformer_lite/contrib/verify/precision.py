"""Checks of the numbers after saving, in few bits and in half precision."""

import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import (
    EXACT,
    ROUNDING,
    Finding,
    relative_difference,
    tree_difference,
)
from flaxformer_lite.contrib.verify.subject import Outputs, Subject, of_tokens
from flaxformer_lite.nn.functions.quantized import dequantize
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.quantized_params import with_scheme
from flaxformer_lite.save_model import save_pretrained
from flaxformer_lite.types import Params

# by form: codes of which `dequantize` makes one step of the scale, and the largest error in steps
STEPS = {"int8": (1, 0.5), "int4": (0x88, 0.5), "nf4": (0xFF, 0.152)}
HALF = 2.0**-9  # bfloat16 rounds by at most this share of a number
ROUNDINGS = 12  # in a layer, which add up like a random walk
CHANCE = 4.0  # times what is expected
GROWTH = 3.0  # times the error of the first positions
FAR = 4096  # a position where bfloat16 counts in steps of 16


def check_saving(subject: Subject) -> Iterator[Finding]:
    """Checks that weights are loaded bit for bit as they were saved."""
    if subject.cfg.quantize != "none" or subject.cfg.adapter is not None:
        raise ConfigError("quantized matrices and adapters are restored or merged when saved.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_pretrained(path, subject.model, dict(subject.params))
        model, params = load_pretrained(path, subject.cfg.head)
        loaded = dataclasses.replace(subject, model=model).by_layer(params)
        due = subject.by_layer(subject.params)
        difference = max(relative_difference(loaded[name], due[name]) for name in due)
    yield Finding("save and load", difference, EXACT)


def check_quantized(subject: Subject) -> Iterator[Finding]:
    """Matrices in few bits are within half a step, and multiply as the matrices they stand for."""
    if subject.cfg.quantize != "none":
        raise ConfigError(f"the matrices are held in {subject.cfg.quantize} already.")
    inputs = subject.inputs(subject.draw(2))
    for form in STEPS:
        try:
            model, stored = with_scheme(subject.model, dict(subject.params), form)
            params = place_params(model.cfg, stored)
        except ConfigError as error:
            yield Finding(f"quantized {form}", None, ROUNDING, str(error))
            continue
        largest, held = _restore(params, subject.params, form)
        yield Finding(f"quantized {form}: matrices", float(largest), 1 + 1e-3, "in half steps")
        with_codes = dataclasses.replace(subject, model=model, params=params)
        due = subject.program(held, inputs)
        difference = tree_difference(with_codes.run(inputs), due)
        yield Finding(f"quantized {form}: outputs", difference, ROUNDING)


@functools.partial(jax.jit, static_argnums=2)
def _restore(params: Params, floats: Params, form: str) -> tuple[jax.Array, Params]:
    """Returns the largest error of a matrix in few bits, in half steps, and what they stand for."""
    unit, most = STEPS[form]
    flat = flatten_dict(params, sep="/")
    restored = flatten_dict(floats, sep="/")
    largest = jnp.float32(0)
    for path in flat:
        if not path.endswith("/codes"):
            continue
        kernel = path.removesuffix("/codes")
        scale = flat[f"{kernel}/scale"]
        held = dequantize(flat[path], scale, form)
        step = dequantize(jnp.full_like(flat[path], unit), scale, form)
        largest = jnp.maximum(largest, jnp.max(jnp.abs(held - restored[kernel]) / (step * most)))
        restored[kernel] = held
    return largest, unflatten_dict(restored, sep="/")


def check_half(subject: Subject) -> Iterator[Finding]:
    """bfloat16 errs as its rounding lets expect, at late positions as at early ones."""
    half = subject.with_config({"dtype": "bfloat16"})
    layers = subject.cfg.encoder_layers + subject.cfg.decoder_layers
    last = max(subject.cfg.max_length, FAR)
    span = subject.cfg.position.span(subject.cfg.max_length)
    if span is not None:
        last = span.stop
    errors = []
    for first in (0, last - subject.length):
        positions_BT = np.tile(np.arange(first, first + subject.length, dtype=np.int32), (2, 1))
        inputs = subject.inputs(subject.draw(2)) | {"position_ids": positions_BT}
        if subject.reads_source:
            inputs["decoder_position_ids"] = positions_BT
        errors.append(_error(half.run(inputs), subject.run(inputs)))
    near, far = errors
    bound = CHANCE * HALF * (ROUNDINGS * (1 + layers)) ** 0.5
    yield Finding("bfloat16", near, bound, "of a typical token, relative to its norm")
    why = f"of positions from {last - subject.length:,} on; the bound follows the first positions"
    yield Finding("bfloat16 far from the start", far, GROWTH * max(near, HALF), why)


def _error(got: Outputs, due: Outputs) -> float:
    """Returns the error of a typical token: experts are chosen anew where two are nearly equal."""
    errors = [0.0]
    for name, value in of_tokens(due).items():
        norm = np.linalg.norm(value.reshape(*value.shape[:2], -1), axis=-1)
        apart = np.asarray(got[name], np.float32) - value
        distance = np.linalg.norm(apart.reshape(*value.shape[:2], -1), axis=-1)
        errors.append(float(np.median(distance / np.maximum(norm, np.finfo(np.float32).tiny))))
    return max(errors)
