"""Prints what a directory of weights holds: its config, its tensors and a checksum."""

import argparse
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.open_model import folder_of, print_notice
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig, plugin_name
from flaxformer_lite.model_folder import is_workdir
from flaxformer_lite.pretrained import folder, hf_config, tensor_names
from flaxformer_lite.pretrained.save import published_tensors
from flaxformer_lite.pretrained.sentences import is_cross_encoder
from flaxformer_lite.types import Shaped

# The number of a layer in a tensor's name: h.11.ln, layer_11.
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=layer_)\d+")


class Contents(NamedTuple):
    """The contents of a directory.

    Attributes:
      form: "safetensors", "Flax msgpack" or "training workdir, step 30".
      cfg: the config, or None if the model is not supported.
      why: the reason if `cfg` is None.
      tensors: the tensors by name; each has a shape and a dtype, and its `read`, or else
        np.asarray, returns the array.
    """

    form: str
    cfg: ModelConfig | None
    why: str
    tensors: Mapping[str, Shaped]


def run(args: argparse.Namespace) -> None:
    """Prints the contents; reads each tensor once, for the checksum."""
    contents = read(folder_of(args.src), args.family, allow_plugins=args.allow_plugins)
    facts = {"directory": args.src, "form": contents.form, **about(contents.cfg)}
    if contents.why:
        facts["model"] = f"not supported: {contents.why}"
    for name, value in facts.items():
        command_line.print_text(f"{name:<12} {value}")
    kinds = {name: _kind(tensor) for name, tensor in contents.tensors.items()}
    groups = _groups(kinds, merge_layers=not args.all)
    rows = []
    total_numbers = 0
    total_bytes = 0
    for (_, kind), names in groups.items():
        numbers = len(names) * math.prod(kind.shape)
        total_numbers += numbers
        total_bytes += numbers * kind.dtype.itemsize
        shape = " x ".join(map(str, kind.shape)) or "scalar"
        count = ""
        if len(names) > 1:
            count = f"{len(names)} times"
        size = f"{numbers * kind.dtype.itemsize:,}"
        rows.append([_label(names), shape, str(kind.dtype), count, size])
    print_table(["tensor", "shape", "dtype", "each", "bytes"], rows, right=[3, 4])
    print(f"{'total':<12} {len(kinds)} tensors, {total_numbers:,} numbers, {total_bytes:,} bytes")
    print(f"{'sha256':<12} {checksum(contents.tensors)}")


def read(where: Path, family: str | None = None, *, allow_plugins: bool = False) -> Contents:
    """Opens the tensors of a directory; safetensors are read lazily."""
    if is_workdir(where):
        run = workdir.read_run(where, allow_plugins=allow_plugins)
        for what in run.notices:
            print_notice(what)
        form = f"training workdir, step {run.step} ({plugin_name(run.cfg.objective)})"
        if run.base is not None:
            form += f", over the frozen weights of {run.base.source}, which are not shown"
            return Contents(form, run.cfg.model, "", flatten_dict(run.params, sep="/"))
        return Contents(form, run.cfg.model, "", published_names(run.cfg.model, run.params))
    tensors = folder.open_weights(where)
    foreign = folder.find_foreign(where)
    form = "safetensors"
    if foreign:
        form = foreign.reader.FORM
    if any(where.glob("flax_model*")):
        form = "Flax msgpack"
    try:
        published = folder.read_config(where)
        plugin, cfg = hf_config.open_config(published, where, None, family)
    except ConfigError as error:
        return Contents(form, None, str(error), tensors)
    weights = plugin.PUBLISHED
    named = {}
    for name, tensor in tensor_names.without_prefix(weights, tensors).items():
        named[tensor_names.full_name(weights, cfg, name)] = tensor
    if is_cross_encoder(where):
        form += " (reranking)"
    return Contents(form, cfg, "", named)


def published_names(cfg: ModelConfig, params: dict) -> Mapping[str, Shaped]:
    """Returns tensors by the names that save_pretrained writes, or parameters by path if it cannot.

    The factors of an adapter, which save_pretrained would merge, keep their paths.
    """
    family = registry.resolve("models", cfg.family)
    flat = flatten_dict(params, sep="/")
    adapter = {}
    base = {}
    for path, leaf in flat.items():
        if cfg.adapter is not None and cfg.adapter.is_factor(path):
            adapter[path] = leaf
        else:
            base[path] = leaf
    if hasattr(family, "PUBLISHED"):
        try:
            hf_config.write_config(family, cfg)
            return published_tensors(family.PUBLISHED, cfg, base) | adapter
        except ConfigError as error:
            print_notice(
                f"parameters are listed by path, as they have no published names ({error})"
            )
    return flat


def checksum(tensors: Mapping[str, Shaped]) -> str:
    """Computes the SHA-256 of names, dtypes, shapes and contents; holds one tensor at a time."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        if hasattr(tensor, "read"):
            values = tensor.read()
        else:
            values = np.asarray(tensor)
        array = np.ascontiguousarray(values)
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def about(cfg: ModelConfig | None) -> dict[str, str]:
    """Describes a model by its family, head and sizes."""
    if cfg is None:
        return {}
    layers = {"encoder": cfg.encoder_layers, "decoder": cfg.decoder_layers}
    depth = ", ".join(f"{n} {side} layers" for side, n in layers.items() if n)
    mixers = list(dict.fromkeys(_mixer(*layer) for layer in cfg.layers))
    sizes = [f"width {cfg.d_model}"]
    if depth:
        sizes = [depth, *sizes, *mixers]
        if cfg.mlp != "none":
            sizes.append(f"mlp {cfg.mlp_dim}")
    positions = plugin_name(cfg.position)
    if cfg.has_position_table:
        positions += f", up to {cfg.max_length}"
    return {
        "family": cfg.family,
        "head": cfg.head,
        "sizes": ", ".join([*sizes, f"vocabulary {cfg.vocab_size}"]),
        "positions": positions,
    }


def _mixer(cfg: ModelConfig, kind: LayerKind) -> str:
    mixer = kind.mixer or cfg.mixer
    if mixer is not None:
        return plugin_name(mixer)
    heads = f"{cfg.num_heads} heads of {cfg.head_width}"
    if cfg.num_heads == 1:
        heads = f"1 head of {cfg.head_width}"
    if cfg.kv_heads != cfg.num_heads:
        heads += f" ({cfg.kv_heads} for keys and values)"
    return heads


class _Kind(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def _kind(tensor: Shaped) -> _Kind:
    return _Kind(tuple(tensor.shape), np.dtype(tensor.dtype))


def _groups(
    kinds: Mapping[str, _Kind], *, merge_layers: bool
) -> dict[tuple[str, _Kind], list[str]]:
    """Groups the names of tensors of one kind that differ only in the numbers of layers."""
    groups: dict[tuple[str, _Kind], list[str]] = {}
    for name, kind in kinds.items():
        pattern = name
        if merge_layers:
            pattern = LAYER_NUMBER.sub("{}", name)
        groups.setdefault((pattern, kind), []).append(name)
    return groups


def _label(names: list[str]) -> str:
    """Merges names that differ only in the numbers of layers: h.{0-11}.ln."""
    label = LAYER_NUMBER.sub("{}", names[0])
    for numbers in zip(*map(LAYER_NUMBER.findall, names), strict=True):
        first = min(numbers, key=int)
        last = max(numbers, key=int)
        span = first
        if first != last:
            span = f"{{{first}-{last}}}"
        label = label.replace("{}", span, 1)
    return label
