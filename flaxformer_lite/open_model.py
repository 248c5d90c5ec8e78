"""Loads models and their parameters: published weights, or what a training run has saved.

Code for workdirs is imported only when it is needed.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh

from flaxformer_lite import first_model, registry
from flaxformer_lite.config import ConfigError, OneOf, choices
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.config.rules import raise_if_invalid
from flaxformer_lite.model_folder import is_address, is_workdir, on_disk
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.nn.adapters.merge import with_initial_factors
from flaxformer_lite.pretrained import load
from flaxformer_lite.pretrained.grow_tables import grow_positions, grow_vocabulary
from flaxformer_lite.pretrained.layouts import Slices
from flaxformer_lite.pretrained.lazy_params import Stored, in_memory, stored_tree
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.tensor_names import by_layer, side_by_side

if TYPE_CHECKING:
    from flaxformer_lite.checkpoints.workdir import Run
    from flaxformer_lite.config import ExperimentConfig

LOG = logging.getLogger("flaxformer_lite")


def load_pretrained(
    path: str | Path,
    head: str | None = None,
    *,
    dtype: str = "float32",
    param_dtype: str | None = None,
    mesh: Mesh | None = None,
    family: str | None = None,
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
    num_labels: int | None = None,
    vocab_size: int | None = None,
    max_length: int | None = None,
    new_tokens: str = "mean",
    new_positions: str = "repeat",
    seed: int = 0,
    adapter: str | Path | AdapterConfig | None = None,
    base: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
    **overrides: Any,
) -> tuple[nn.Module, dict]:
    """Loads a model and its parameters from published weights or from a training workdir.

        >>> head = "sequence_classification"
        >>> model, params = load_pretrained("path/to/bert", head=head)  # doctest: +SKIP
        >>> output = model.apply({"params": params}, ids, attention_mask=mask)  # doctest: +SKIP
        >>> output.logits  # doctest: +SKIP

    Args:
      path: a directory that transformers' save_pretrained wrote, with config.json and
        model.safetensors (or shards with their index, or Flax's old msgpack files); a checkpoint of
        another program (docs/migration.md); or the `--workdir` of a training run, whose
        best weights are read if it keeps them, else its newest undamaged checkpoint. Either may be
        a gs:// or s3:// address. Or a model on the Hugging Face Hub, hf://ORG/NAME or
        hf://ORG/NAME@REVISION.
      head: the head of the model; None is the one that `architectures` in config.json names, or
        that the run trained.
      dtype: dtype of activations and matmuls, `float32` or `bfloat16`.
      param_dtype: dtype of the parameters; None is `dtype`.
      mesh: the devices for the parameters, by the partition rules of the family; each device reads
        only its shard from the file.
      family: a model family of your own that reads the directory, as `module:Model`; None is the
        package's family for the model_type. A workdir names its family itself.
      new_head: whether to initialize parameters of the head that the directory lacks, with a
        warning in the log, instead of raising an error.
      labels: with `new_head`, the names of the classes, or their number. A head of the directory
        that has other classes is initialized anew.
      num_labels: with `new_head`, the number of classes; the same as a number in `labels`.
      vocab_size: a larger number of tokens than that of the weights. The rows of new tokens are new
        parameters.
      max_length: a larger number of positions. Rotary and relative positions have no table that
        grows.
      new_tokens: rows of new tokens: "mean" of the others, or "normal", drawn around it.
      new_positions: rows of new positions: "repeat" begins the table again, so that texts of the
        old length are read as before; "interpolate" spreads it over the new length.
      seed: random seed for new parameters.
      adapter: a directory with an adapter for the model, as PEFT or `save_adapter` writes it, or
        the record of a new one, such as `LoraConfig(rank=8)`, which is initialized with `seed`. Its
        factors are parameters of their own, which `merge_adapter` adds to the weights.
      base: where the frozen weights of a workdir are now, if not where the run read them; others
        are refused by their digests.
      allow_plugins: whether the config of a workdir may name plug-ins outside this package;
        importing them runs the code of whoever wrote them. True for all, or a collection of names.
      **overrides: fields of ModelConfig that change no weight: dropout, dropout_at, scan, remat,
        attention; `quantize` ("int8", "int4" or "nf4") holds the layers' matrices in few bits, and
        `cache="int8"` keys and values while generating (docs/precision.md).

    Returns:
      The linen module, and its parameters, a nested dict of arrays of `param_dtype`.

    Raises:
      ConfigError: the config needs something that this package does not compute.
      WeightsError: a file is damaged, or its tensors do not fit the config: some are missing, extra
        or of another shape.
      CheckpointError: the workdir has no undamaged checkpoint.
    """
    first_model.prepare_process()
    first_model.refuse_fork()
    overrides |= {"dtype": dtype, "param_dtype": param_dtype or dtype}
    labels = load.classes_of(labels, num_labels, new_head)
    new_adapter = adapter if isinstance(adapter, AdapterConfig) else None
    model, stored = open_pretrained(
        path,
        head,
        family=family,
        new_head=new_head,
        labels=labels,
        adapter=None if isinstance(adapter, AdapterConfig) else adapter,
        base=base,
        allow_plugins=allow_plugins,
        **overrides,
    )
    if num_labels is not None and model.cfg.head not in load.NAMED_HEADS:
        raise ConfigError(
            f"num_labels={num_labels}: head={model.cfg.head!r} has no classes; pass head= as one of"
            f" {', '.join(load.NAMED_HEADS)}."
        )
    if vocab_size is not None:
        model, stored = grow_vocabulary(model, stored, vocab_size, new_tokens=new_tokens, seed=seed)
    if max_length is not None:
        model, stored = grow_positions(model, stored, max_length, new_positions=new_positions)
    if new_head:
        stored = load.with_new(model, stored, seed)
    if new_adapter is None:
        return model, place_params(model.cfg, stored, mesh)
    model, stored = load.with_adapter(model, stored, new_adapter, seed)
    # Placed first, as factors that depend on a matrix are computed where it lies.
    params = place_params(model.cfg, stored, mesh)
    return model, with_initial_factors(new_adapter, params)


def open_pretrained(
    path: str | Path,
    head: str | None = None,
    *,
    family: str | None = None,
    new_head: bool = False,
    auxiliary: bool = False,
    labels: Sequence[str] | int | None = None,
    adapter: str | Path | None = None,
    base: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
    **overrides: Any,
) -> tuple[nn.Module, dict]:
    """Opens a directory like `load_pretrained`, but reads each parameter only when it is used.

    Args:
      path, head, family, labels, adapter, base, allow_plugins: as in `load_pretrained`.
      **overrides: as there.
      new_head: whether the head may lack parameters, which are then left out.
      auxiliary: whether to open the second model of a run, such as ELECTRA's generator.

    Returns:
      The linen module, and a nested dict of `Stored` parameters.

    Raises:
      ConfigError, WeightsError, CheckpointError: as `load_pretrained`.
    """
    load.check_overrides(overrides)
    scheme = overrides.pop("quantize", None)
    if scheme is not None:
        raise_if_invalid("quantize", scheme, OneOf(choices.QUANTIZATIONS)(scheme))
    folder = on_disk(path)
    source = str(folder)
    if is_address(path):
        source = str(path)
    if is_workdir(folder):
        if adapter is not None:
            raise ConfigError(
                f"adapter={adapter}: {folder} is a workdir; convert it first (flaxformer_lite"
                " convert)."
            )
        from flaxformer_lite.checkpoints.workdir import read_run

        run = read_run(folder, auxiliary=auxiliary, allow_plugins=allow_plugins)
        model, stored = _open_run(
            run, folder, head, overrides, new_head, labels, base, allow_plugins
        )
    elif base is not None:
        raise ConfigError(
            f"base={base}: {folder} holds published weights, which need no others; only a training"
            " workdir does."
        )
    elif auxiliary:
        raise ConfigError(
            f"{folder}: published weights hold one model; only a training workdir can have an"
            " auxiliary model."
        )
    else:
        model, stored = load.open_published(
            folder,
            head,
            source=source,
            family=family,
            new_head=new_head,
            labels=labels,
            adapter=None if adapter is None else on_disk(adapter),
            **overrides,
        )
    if scheme is None:
        return model, stored
    from flaxformer_lite.pretrained.quantized_params import with_scheme

    return with_scheme(model, stored, scheme)


def _open_run(
    run: "Run",
    path: Path,
    head: str | None,
    overrides: dict[str, Any],
    new_head: bool = False,
    labels: Sequence[str] | int | None = None,
    base: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
) -> tuple[nn.Module, dict]:
    """Opens the parameters of a run; `head` may be any head whose parameters the run has."""
    for line in run.notices:
        LOG.warning(line)
    kind: Any = type(run.model)
    trained = run.model.cfg
    if head is not None and head not in kind.heads:
        raise ConfigError(
            f"head={head!r}: no such head; {trained.family} has {', '.join(kind.heads)}."
        )
    cfg = dataclasses.replace(trained, head=head or trained.head, **overrides)
    cfg, relabelled = load.with_labels(
        cfg, labels if new_head else None, run.cfg.objective.published_fields().get("labels", ())
    )
    model = kind(cfg, source=str(path))
    params = {path: in_memory(x) for path, x in flatten_dict(run.params, sep="/").items()}
    if run.base is not None:
        params |= _open_base(run, path, base, allow_plugins)
    stored = {}  # by the paths of unstacked layers
    for name, (stack, index) in by_layer(trained, params).items():
        stored[name] = stack.layer(index)
    shapes = parameter_shapes(model)
    missing = set()
    for name, leaf in side_by_side(model.cfg, shapes).items():
        if name not in stored or stored[name].shape != leaf.shape:
            missing.add(name)
    initialized = {name for name in missing if new_head and load.is_of_head(name)}
    if relabelled:
        initialized |= load.per_class(model)
    lacking = sorted(missing - initialized)
    if lacking:
        raise WeightsError(
            f"{path}: head={head!r} needs {lacking[0]}, which this run has not trained; its head is"
            f" {trained.head!r}."
        )
    restored = {name: leaf for name, leaf in shapes.items() if name not in initialized}
    return model, stored_tree(model.cfg, restored, lambda name: stored[name].read)


def _open_base(
    run: "Run", path: Path, moved: str | Path | None, allow_plugins: registry.Allowed
) -> dict[str, Stored]:
    """Returns the frozen weights that a run reads elsewhere, by the paths of its parameters.

    They are opened when one of them is first read: an adapter is written without them.
    """
    from flaxformer_lite.checkpoints.digest import describe_leaves

    base = run.base
    assert base is not None
    source = str(moved or base.source)

    @functools.cache
    def opened() -> dict[str, Stored]:
        try:
            return open_frozen(run.cfg, source, allow_plugins)
        except (ConfigError, WeightsError) as error:
            raise ConfigError(
                f"{path}: its frozen weights are those of {source}, which cannot be read ({error});"
                " say where they are: load_pretrained(..., base=FOLDER), or flaxformer_lite convert"
                " --base FOLDER writes the run with them."
            ) from None

    def checked(name: str) -> Stored:
        """Compares the whole parameter with the digest of the run when it is first read."""
        dtype, shape, _ = base.leaves[name]
        seen: list[str] = []

        def read(index: Slices) -> np.ndarray:
            if name not in opened():
                base.check({}, source, "--base", needed=[name])
            if seen:
                return opened()[name].read(index)
            whole = np.asarray(opened()[name])
            base.check(describe_leaves({name: whole}), source, "--base")
            seen.append(name)
            return whole[index]

        return Stored(tuple(shape), jnp.dtype(dtype), read)

    own = flatten_dict(run.params, sep="/")
    return {name: checked(name) for name in base.leaves if name not in own}


def open_frozen(
    cfg: "ExperimentConfig", source: str, allow_plugins: registry.Allowed
) -> dict[str, Stored]:
    """Opens the weights that a run started from, by the paths and in the form of its parameters.

    Args:
      cfg: the resolved config of the run.
      source: their directory or address.
      allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError, CheckpointError: as `load_pretrained`.
    """
    from flaxformer_lite.pretrained.quantized_params import with_scheme

    model, stored = open_start(cfg, source, allow_plugins)
    return flatten_dict(with_scheme(model, stored, cfg.model.quantize)[1], sep="/")


def open_start(
    cfg: "ExperimentConfig", source: str, allow_plugins: registry.Allowed
) -> tuple[nn.Module, dict]:
    """Opens the weights that a run starts from like `open_pretrained`, with the run's head.

    Args:
      cfg, source, allow_plugins: as in `open_frozen`.
    """
    labels: tuple[str, ...] | int | None = None
    if cfg.objective.new_head:
        labels = cfg.objective.published_fields().get("labels", ()) or cfg.model.num_labels
    return open_pretrained(
        source,
        cfg.model.head,
        family=cfg.model.family,
        new_head=cfg.objective.new_head,
        labels=labels,
        allow_plugins=allow_plugins,
        scan=cfg.model.scan,
        param_dtype=cfg.model.param_dtype,
    )
