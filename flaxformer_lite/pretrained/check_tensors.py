"""Compares the tensors of a file with those that its config implies.

None may be missing, left over or of another shape.
"""

import dataclasses
import logging
import re
from pathlib import Path

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.weight_map import Published
from flaxformer_lite.pretrained import tensor_names
from flaxformer_lite.pretrained.layouts import TensorLayout
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

DECODER_BIAS = "decoder.bias"
LOG = logging.getLogger("flaxformer_lite")


def untie_where_tables_differ(
    published: Published, cfg: ModelConfig, tensors: dict[str, Tensor]
) -> ModelConfig:
    """Unties the logits if the file has an output table that differs from the input table.

    T5 1.1 as saved by transformers 5 has one, whatever its config says.
    """
    out = tensor_names.vocab_kernel(published, cfg)
    if not cfg.tie_embeddings or out not in tensors:
        return cfg
    table = tensor_names.vocab_table(published, cfg)
    same = table in tensors and np.array_equal(tensors[table].read(), tensors[out].read())
    return cfg if same else dataclasses.replace(cfg, tie_embeddings=False)


def with_computed_biases(published: Published, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with the bias of the logits that transformers computes with.

    A masked language model has it under two names. Usually they are the same; if a file has both,
    the output layer's counts, whether or not its table is tied.
    """
    used = dict(tensors)
    for name, original in published.duplicates.items():
        if name.endswith(DECODER_BIAS) and name in tensors:
            used[original] = tensors[name]
    return used


def with_tied_tables(
    published: Published, cfg: ModelConfig, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the tensors with those that the file has only under the name of a copy of theirs.

    transformers reads any name of a table that is tied to others.
    """
    originals: list[tuple[str, str]] = []
    if not cfg.has_decoder_table:
        originals += published.duplicates.items()
    if cfg.tie_embeddings:
        table = tensor_names.vocab_table(published, cfg)
        originals += [(name, table) for name in tensor_names.vocab_kernels(published, cfg)]
    used = dict(tensors)
    for name, original in originals:
        if name in used:
            used.setdefault(original, used[name])
    return used


def _first_of(problems: list[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{problems[0]} (and {len(problems) - 1} more)"


def check(
    published: Published,
    cfg: ModelConfig,
    path: Path,
    tensors: dict[str, Tensor],
    layouts: dict[str, TensorLayout],
    new: set[str],
) -> None:
    """Checks that each parameter has a tensor of its shape, and each tensor a parameter.

    Args:
      published: the published names of the family.
      cfg: the config of the model.
      path: the directory, for messages.
      tensors: the tensors of the file, without prefix.
      layouts: the layout of each parameter, by its path without scan.
      new: paths of parameters that need no tensor.

    Raises:
      WeightsError: they do not match; names the first tensor.
    """
    wanted = {}
    for parameter, layout in layouts.items():
        if parameter not in new:
            wanted[layout.name] = (parameter, layout)
    missing = sorted(set(wanted) - set(tensors) - set(published.optional))
    if missing:
        raise WeightsError(
            f"{path}: no tensor {_first_of(missing)}, which head={cfg.head!r} needs for"
            f" {wanted[missing[0]][0]}; nothing is initialized instead: choose a head that the file"
            " has, or let new_head=True make one."
        )
    stored = {name: tensors[name] for name in wanted if name in tensors}
    wrong = []
    for name, tensor in stored.items():
        if tensor.shape != wanted[name][1].file_shape:
            wrong.append(name)
    if wrong:
        shape = stored[wrong[0]].shape
        implied = wanted[wrong[0]][1].file_shape
        raise WeightsError(
            f"{path}: {_first_of(wrong)} has shape {list(shape)}, but config.json implies"
            f" {list(implied)}; one of the two is from another model."
        )
    integers = [name for name, tensor in stored.items() if tensor.dtype.kind in "iub"]
    if integers:
        dtype = tensors[integers[0]].dtype
        raise WeightsError(
            f"{path}: {integers[0]} has dtype {dtype}: quantized weights are not supported; fetch"
            " the model in float32, float16 or bfloat16."
        )
    left = set(tensors) - set(wanted) - tensor_names.siblings(published, cfg, tensors, layouts)
    left -= {layouts[one].name for one in new}
    for pattern in published.ignored:
        left = {name for name in left if not re.fullmatch(pattern, name)}
    for pattern, what in published.left_out.items():
        named = re.compile(pattern.format(layers=max(cfg.encoder_layers, cfg.decoder_layers)))
        matching = {name for name in left if named.fullmatch(name)}
        if matching:
            LOG.warning("%s: %s left out: %s.", path, _first_of(sorted(matching)), what)
        left -= matching
    left -= _repeated(published, cfg, path, tensors, left)
    if left:
        raise WeightsError(
            f"{path}: tensor {_first_of(sorted(left))} has no place in a {cfg.family} with this"
            " config.json; nothing is dropped silently: correct the config or the file."
        )


def _repeated(
    published: Published, cfg: ModelConfig, path: Path, tensors: dict[str, Tensor], left: set[str]
) -> set[str]:
    """Returns the leftover tensors that repeat others, or that the config implies.

    Raises:
      WeightsError: one of them differs from what it should repeat.
    """
    # A position table is built only if the file has one: config.json by itself might ask for any
    # size.
    tables = [name for name in left if tensors[name].shape[:1] == (cfg.max_length,)]
    derived = published.derived(cfg) if tables else {}
    originals = published.duplicates
    compared = set()
    if cfg.tie_embeddings:
        compared.add(tensor_names.vocab_kernel(published, cfg))
    for name in sorted(left & set(originals)):
        if not np.array_equal(tensors[name].read(), tensors[originals[name]].read()):
            raise WeightsError(
                f"{path}: {name} differs from {originals[name]}, but should be a copy of it."
            )
    rounded = {}
    for name in sorted(left & set(derived)):
        stored = tensors[name].read()
        # bfloat16 alone moves a sine by up to 2 ** -9.
        rounding = 1e-5 if tensors[name].dtype == np.float32 else 1e-2
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
            tensors[next(iter(rounded))].dtype,
            max(rounded.values()),
        )
    return left & {*compared, *originals, *derived}
