"""Compares the tensors of a file with those that its config implies: none may be missing, left over
or misshapen."""

import dataclasses
import logging
import re
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.layouts import Place
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

DECODER_BIAS = "decoder.bias"
LOG = logging.getLogger("flaxformer_lite")


def untie_where_tables_differ(
    spelled: Published, cfg: ModelConfig, tensors: dict[str, Tensor]
) -> ModelConfig:
    """Unties the logits if the file has its own output table, whatever its config says (T5 1.1 as
    saved by transformers 5); they stay tied if it repeats the input table."""
    out = tensor_names.vocab_kernel(spelled, cfg)
    if not cfg.tie_embeddings or out not in tensors:
        return cfg
    table = tensor_names.vocab_table(spelled, cfg)
    same = table in tensors and np.array_equal(tensors[table].read(), tensors[out].read())
    return cfg if same else dataclasses.replace(cfg, tie_embeddings=False)


def with_computed_biases(spelled: Published, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with the bias of the logits that transformers computes with.

    A masked language model has it under two names. They are usually one, but where a file has two,
    the output layer's counts, whether or not its table is tied.
    """
    pairs = {
        original: name
        for name, original in spelled.duplicates.items()
        if name.endswith(DECODER_BIAS) and name in tensors
    }
    return tensors | {original: tensors[name] for original, name in pairs.items()}


def _first_of(problems: list[str]) -> str:
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def check(
    spelled: Published,
    cfg: ModelConfig,
    path: Path,
    tensors: dict[str, Tensor],
    found: dict[str, Place],
    new: set[str],
) -> None:
    """Checks that every parameter but the new ones has a tensor of its shape, and every tensor a
    parameter."""
    wanted = {
        place.name: (parameter, place) for parameter, place in found.items() if parameter not in new
    }
    if missing := sorted(set(wanted) - set(tensors) - set(spelled.optional)):
        raise WeightsError(
            f"{path}: no tensor {_first_of(missing)}, which head={cfg.head!r} needs for"
            f" {wanted[missing[0]][0]}; nothing is initialized instead: choose a head that the file"
            " has, or let new_head=True make one."
        )
    wrong = [
        n
        for n, (_, place) in wanted.items()
        if n in tensors and tensors[n].shape != place.file_shape
    ]
    if wrong:
        shape = tensors[wrong[0]].shape
        implied = wanted[wrong[0]][1].file_shape
        raise WeightsError(
            f"{path}: {_first_of(wrong)} has shape {list(shape)}, but config.json implies"
            f" {list(implied)}; one of the two is from another model."
        )
    integers = [n for n in wanted if n in tensors and tensors[n].array.dtype.kind in "iub"]
    if integers:
        dtype = tensors[integers[0]].array.dtype
        raise WeightsError(
            f"{path}: {integers[0]} has dtype {dtype}: quantized weights are not supported; fetch"
            " the model in float32, float16 or bfloat16."
        )
    left = set(tensors) - set(wanted) - tensor_names.siblings(spelled, cfg, tensors, found)
    left -= {found[one].name for one in new}
    left -= {
        name for name in left if any(re.fullmatch(pattern, name) for pattern in spelled.ignored)
    }
    left -= _repeated(spelled, cfg, path, tensors, left)
    if left:
        raise WeightsError(
            f"{path}: tensor {_first_of(sorted(left))} has no place in a {cfg.family} with this"
            " config.json; nothing is dropped silently: correct the config or the file."
        )


def _repeated(
    spelled: Published, cfg: ModelConfig, path: Path, tensors: dict[str, Tensor], left: set[str]
) -> set[str]:
    """Returns the leftover tensors that follow from others or from the config, after checking that
    they agree."""
    # A position table is built only if the file has one: config.json by itself might ask for any
    # size.
    tables = [name for name in left if tensors[name].shape[:1] == (cfg.max_length,)]
    derived = spelled.derived(cfg) if tables else {}
    originals = spelled.duplicates
    compared = {tensor_names.vocab_kernel(spelled, cfg)} if cfg.tie_embeddings else set()
    for name in sorted(left & set(originals)):
        if not np.array_equal(tensors[name].read(), tensors[originals[name]].read()):
            raise WeightsError(
                f"{path}: {name} differs from {originals[name]}, but should be a copy of it."
            )
    rounded = {}
    for name in sorted(left & set(derived)):
        stored = tensors[name].read()
        rounding = 1e-5 if tensors[name].array.dtype == np.float32 else 1e-2
        if stored.shape != derived[name].shape or not np.allclose(
            np.float32(stored), derived[name], atol=rounding
        ):
            raise WeightsError(
                f"{path}: {name} is not the table that config.json implies; these positions are not"
                " supported here."
            )
        if stored.dtype != np.float32:
            rounded[name] = np.abs(np.float32(stored) - derived[name]).max()
    if rounded:
        LOG.warning(
            "%s: %s stored in %s: transformers computes with these rounded sines and cosines, off"
            " by up to %.0e; here they are exact.",
            path,
            " and ".join(rounded),
            tensors[next(iter(rounded))].array.dtype,
            max(rounded.values()),
        )
    return left & {*compared, *originals, *derived}
