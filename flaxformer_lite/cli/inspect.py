"""Inspection of a directory of weights, printed as rows and a table."""

import argparse
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli.open_model import folder_of, notice
from flaxformer_lite.cli.tables import print_table
from flaxformer_lite.config import ConfigError, ModelConfig, plugin_name
from flaxformer_lite.pretrained import folder, hf_config, tensor_names
from flaxformer_lite.pretrained.save import published_tensors

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|(?<=layer_)\d+")  # of a layer


class Contents(NamedTuple):
    """The contents of a directory.

    Attributes:
      form: "safetensors", "Flax msgpack" or "training workdir, step 30".
      cfg: the config, or None if the model is not supported.
      why: the reason if `cfg` is None.
      tensors: by name; each has a shape and a dtype; its `read` or np.asarray returns an array.
    """

    form: str
    cfg: ModelConfig | None
    why: str
    tensors: Mapping[str, Any]


def run(args: argparse.Namespace) -> None:
    """Prints the contents; reads each tensor once, for the checksum."""
    contents = read(folder_of(args.directory), args.family, allow_plugins=args.allow_plugins)
    rows = {"directory": args.directory, "form": contents.form, **_about(contents.cfg)}
    if contents.why:
        rows["model"] = f"none of ours: {contents.why}"
    sizes = {
        name: (tuple(t.shape), np.dtype(getattr(t, "array", t).dtype))
        for name, t in contents.tensors.items()
    }
    tensors = []
    for label, times, (shape, dtype) in _folded(sizes, args.all):
        size = times * math.prod(shape) * dtype.itemsize
        each = f"{times} times" if times > 1 else ""
        tensors.append(
            [label, " x ".join(map(str, shape)) or "scalar", str(dtype), each, f"{size:,}"]
        )
    for name, value in rows.items():
        print(f"{name:<12} {value}")
    print_table(["tensor", "shape", "dtype", "each", "bytes"], tensors, right=[3, 4])
    numbers = [math.prod(shape) for shape, _ in sizes.values()]
    total = sum(n * dtype.itemsize for n, (_, dtype) in zip(numbers, sizes.values(), strict=True))
    print(f"{'total':<12} {len(sizes)} tensors, {sum(numbers):,} numbers, {total:,} bytes")
    print(f"{'sha256':<12} {checksum(contents.tensors)}")


def read(where: Path, family: str | None = None, *, allow_plugins: bool = False) -> Contents:
    """Opens the tensors of a directory; safetensors are read lazily."""
    if workdir.is_workdir(where):
        run = workdir.read_run(where, allow_plugins=allow_plugins)
        for what in run.notices:
            notice(what)
        form = f"training workdir, step {run.step} ({plugin_name(run.cfg.objective)})"
        return Contents(form, run.cfg.model, "", published_names(run.cfg.model, run.params))
    tensors = folder.open_weights(where)
    form = "safetensors" if any(where.glob("model*.safetensors*")) else "Flax msgpack"
    published = folder.read_config(where)
    try:
        plugin, cfg = hf_config.open_config(published, where, None, family)
    except ConfigError as error:
        return Contents(form, None, str(error), tensors)
    short = tensor_names.without_prefix(plugin.PUBLISHED, tensors)
    weights = plugin.PUBLISHED
    return Contents(
        form, cfg, "", {tensor_names.full_name(weights, cfg, name): t for name, t in short.items()}
    )


def published_names(cfg: ModelConfig, params: dict) -> Mapping[str, Any]:
    """Returns tensors as save_pretrained would write them, or parameters by path if it cannot.

    The factors of an adapter, which it would merge, keep their paths.
    """
    family = registry.resolve("models", cfg.family)
    flat = flatten_dict(params, sep="/")
    factors = cfg.adapter.factors if cfg.adapter is not None else ()
    adapter = {name: leaf for name, leaf in flat.items() if name.rpartition("/")[2] in factors}
    base = {name: leaf for name, leaf in flat.items() if name not in adapter}
    if hasattr(family, "PUBLISHED"):
        try:
            hf_config.write_config(family, cfg)
            return published_tensors(family.PUBLISHED, cfg, base) | adapter
        except ConfigError as error:
            notice(f"own parameter names, as there is no published form ({error})")
    return flat


def checksum(tensors: Mapping[str, Any]) -> str:
    """Computes SHA-256 over names, dtypes, shapes and contents, one tensor in memory at a time."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        values = tensor.read() if hasattr(tensor, "read") else np.asarray(tensor)
        array = np.ascontiguousarray(values)
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _about(cfg: ModelConfig | None) -> dict[str, str]:
    if cfg is None:
        return {}
    layers = {"encoder": cfg.encoder_layers, "decoder": cfg.decoder_layers}
    depth = ", ".join(f"{n} {side} layers" for side, n in layers.items() if n)
    heads = f"{cfg.num_heads} heads of {cfg.head_width}"
    if cfg.kv_heads != cfg.num_heads:
        heads += f" ({cfg.kv_heads} for keys and values)"
    mixers = [heads if name == "attention" else name for name in cfg.mixer_names]
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


def _folded(sizes: Mapping[str, tuple], every: bool) -> Iterable[tuple[str, int, tuple]]:
    """Yields (label, count, (shape, dtype)).

    Tensors that differ only in a layer's number share a label, h.{0-11}.ln, unless `every`.
    """
    groups: dict[tuple, list[str]] = {}
    for name, size in sizes.items():
        groups.setdefault((name if every else NUMBER.sub("{}", name), size), []).append(name)
    for (_, size), names in groups.items():
        yield _label(names), len(names), size


def _label(names: list[str]) -> str:
    """Merges names that differ only in the numbers of layers."""
    spans = []
    for numbers in zip(*map(NUMBER.findall, names), strict=True):
        first = min(numbers, key=int)
        last = max(numbers, key=int)
        spans.append(first if first == last else f"{{{first}-{last}}}")
    remaining = iter(spans)
    return NUMBER.sub(lambda _: next(remaining), names[0])
