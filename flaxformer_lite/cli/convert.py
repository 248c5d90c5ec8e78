"""Converts any checkpoint to published weights, one tensor at a time."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.checkpoints.resolve_path import new_place
from flaxformer_lite.cli.open_model import folder_of, print_notice, print_warnings
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.config.choices import DTYPES
from flaxformer_lite.model_details import load_labels
from flaxformer_lite.model_folder import is_workdir
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained import folder, save_adapter
from flaxformer_lite.pretrained.load import NAMED_HEADS
from flaxformer_lite.pretrained.save import write_pretrained
from flaxformer_lite.pretrained.sentences import is_cross_encoder
from flaxformer_lite.runs.report import model_card
from flaxformer_lite.runs.report.model_card import CardSource
from flaxformer_lite.runtime.progress import read_progress
from flaxformer_lite.save_model import base_of, origin_of
from flaxformer_lite.storage import hub
from flaxformer_lite.types import Array, Shaped


def run(args: argparse.Namespace) -> None:
    if args.adapter:
        write_adapter(
            args.src,
            args.dst,
            dtype=args.dtype,
            base=args.base,
            allow_plugins=args.allow_plugins,
        )
    else:
        names = ("dtype", "head", "family", "auxiliary", "base", "allow_plugins")
        convert(args.src, args.dst, **{name: getattr(args, name) for name in names})


def convert(
    src: str,
    dst: str,
    *,
    dtype: str | None,
    head: str | None,
    family: str | None = None,
    auxiliary: bool = False,
    base: str | None = None,
    allow_plugins: bool = False,
) -> None:
    """Writes the directory `dst`, which appears only when it is complete, and prints one line."""
    is_push = hub.is_hub(dst)
    if is_push:
        hub.check_push(dst)
    source = folder_of(src)
    run = None
    if is_workdir(source):
        run = source
    foreign = folder.find_foreign(source)
    if foreign:
        for line in foreign.reader.describe(foreign.folder):
            print_notice(line)
    with new_place(dst) as made:
        if run:
            if head is not None:
                raise ConfigError(
                    f"--head={head}: a training workdir is written with the head it was trained"
                    " with."
                )
        else:
            dtype = dtype or _stored_dtype(source)
        with print_warnings():
            dtypes: dict[str, Any] = {}
            if dtype:
                dtypes = {"dtype": dtype, "param_dtype": dtype}
            model, params = open_pretrained(
                source,
                head,
                family=family,
                auxiliary=auxiliary,
                base=base,
                allow_plugins=allow_plugins,
                **dtypes,
            )
        total = sum(_size(leaf) for leaf in jax.tree.leaves(params))
        with read_progress(f"writing {dst}", total) as advance, print_warnings():
            watched = jax.tree.map(lambda leaf: _Watched(leaf, advance), params)
            write_pretrained(made, model, watched, like=origin_of(model))
        cfg = model.cfg
        kind = "transformers"
        if (made / "modules.json").exists() or is_cross_encoder(made):
            kind = "sentence-transformers"
        known = _card_source(source, cfg, kind, allow_plugins=allow_plugins)
        if auxiliary:  # the run's scores are those of its first model
            known = known._replace(run=None)
        card = _write_card(made, src, dst, cfg, params, known)
    if is_push and "\n# license:" in card:
        print_notice(f"{dst}: {model_card.NO_LICENSE}")
    print(f"{dst}: {cfg.family}, head {cfg.head}, {total / 1e6:,.1f} MB in {cfg.param_dtype}")


def _card_source(source: Path, cfg: ModelConfig, kind: str, *, allow_plugins: bool) -> CardSource:
    """Returns what is known of a model that is read from a directory."""
    labels = []
    if cfg.head in NAMED_HEADS:
        labels = load_labels(source, allow_plugins=allow_plugins)
    known = CardSource(labels=labels, kind=kind, allow_plugins=allow_plugins)
    if is_workdir(source):
        return known._replace(run=source)
    return known._replace(base_folder=source)


def _write_card(
    made: Path, src: str, dst: str, cfg: ModelConfig, params: dict, known: CardSource
) -> str:
    begun = src
    if known.base_folder is None:
        begun = workdir.started_from(folder_of(src))
    count = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
    return model_card.add_card(made, dst, cfg, count, begun, known, print_notice)


def write_adapter(
    src: str,
    dst: str,
    *,
    dtype: str | None = None,
    base: str | None = None,
    allow_plugins: bool = False,
) -> None:
    """Writes the adapter that a run has trained, and prints one line about it."""
    source = folder_of(src)
    if not is_workdir(source):
        raise ConfigError(
            f"--adapter: {src} is not a training workdir; pass the --workdir of a run that trained"
            " an adapter."
        )
    overrides: dict[str, Any] = {}
    if dtype:
        overrides["param_dtype"] = dtype
    with print_warnings():
        model, params = open_pretrained(source, base=base, allow_plugins=allow_plugins, **overrides)
    cfg = model.cfg
    with new_place(dst) as made:
        with print_warnings():
            save_adapter.write_adapter(made, model, params, base=base_of(model.source))
        weights = parameter_shapes(type(model)(dataclasses.replace(cfg, adapter=None)))
        flat = flatten_dict(params, sep="/")
        factors = {path: leaf for path, leaf in flat.items() if path not in weights}
        known = _card_source(source, cfg, "peft", allow_plugins=allow_plugins)
        _write_card(made, src, dst, cfg, factors, known)
    print(f"{dst}: the adapter of a {cfg.family}, rank {cfg.adapter.rank}, in {cfg.param_dtype}")


class _Watched:
    """A parameter that reports the bytes that are read from it, to show progress."""

    def __init__(self, leaf: Array, advance: Callable[[int], None]):
        self.shape = leaf.shape
        self.dtype = leaf.dtype
        self._leaf = leaf
        self._advance = advance

    def __getitem__(self, row: int) -> np.ndarray:
        self._advance(_size(self) // self.shape[0])
        return np.asarray(self._leaf[row])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self._advance(_size(self))
        return np.asarray(self._leaf)


def _stored_dtype(source: Path) -> str:
    """Returns the dtype that all tensors share, if it is supported, else float32."""
    dtypes = [tensor.dtype for tensor in folder.open_weights(source).values()]
    kinds = {str(dtype) for dtype in dtypes if dtype.kind not in "iub"}
    if len(kinds) == 1 and kinds <= set(DTYPES):
        return kinds.pop()
    print_notice(
        f"{source} holds {', '.join(sorted(kinds))}: written as float32; --dtype chooses another."
    )
    return "float32"


def _size(leaf: Shaped) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize
