"""Reads or replaces the outputs of modules, by name, while a model is applied.

Linen's interceptors see every call of a module, also inside scan and remat; without an active one,
nothing is read and the compiled program is the same. A name is the path in the parameter tree, with
the layers of a stack numbered in the order in which they run, even if they share weights or are
scanned. Attention adds `logits`, `weights` and `heads` below its own name.
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import CollectionFilter, union_filters
from flax.linen.module import InterceptorContext
from jax.typing import ArrayLike

from flaxformer_lite.config import ConfigError
from flaxformer_lite.nn.attentions import dense
from flaxformer_lite.nn.attentions.arguments import Arguments
from flaxformer_lite.nn.functions import kernels
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.functions.sharding import PlacedExecution
from flaxformer_lite.nn.modules.dropout import Dropout, DropoutMask
from flaxformer_lite.nn.modules.stack import Group, Stack
from flaxformer_lite.types import Params

VALUES = "tap_values"  # the collection of the values that are read
ROWS = "tap_rows"  # the collection of the row numbers of scanned layers
LAYERS = re.compile(r"\{([\d,]+)\}")  # in the name of a scanned layer, the layers of its rows
UNNAMED = (Dropout, DropoutMask, nn.Dropout, Group)  # modules whose output has no name

# What replaces a value: an array, a number, or a function of the value that returns either.
Patch = ArrayLike | Callable[[jax.Array], ArrayLike]


class RunningModule(NamedTuple):
    """A module that is running.

    Attributes:
      calls: the number of calls of each path from this module.
      path: the module's path in the parameter tree.
      name: the name of its output. In a scan, one trace stands for several layers, which the name
        lists, as in `layer_{0,2,4}`.
      module: the module; None outside of the model.
      row: in a scan, the traced index into these layers.
    """

    calls: Counter[tuple[str, ...]]
    path: tuple[str, ...] = ()
    name: tuple[str, ...] = ()
    module: nn.Module | None = None
    row: jax.Array | None = None


class Taps:
    """An interceptor (`nn.intercept_methods`) of one call of `apply`.

    Sows the values that it reads into the collection VALUES.

    Attributes:
      wants: function of a name that returns whether to read its value.
      patches: replacements of values, by name.
      found: the shapes and dtypes of all values by name, in the order of their computation.
    """

    def __init__(self, wants: Callable[[str], bool], patches: Mapping[str, Patch]) -> None:
        self.wants = wants
        self.patches = patches
        self.found: dict[str, jax.ShapeDtypeStruct] = {}
        self._frames = [RunningModule(Counter())]

    def __call__(
        self,
        next_function: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        context: InterceptorContext,
    ) -> Any:
        module = context.module
        method = context.method_name
        if method == "attend" and len(args) == 4 and isinstance(args[3], Arguments):
            return self._attend(module, next_function, *args)
        if method != "__call__":
            return next_function(*args, **kwargs)
        frame = self._enter(module)
        # A module inside its own scan or remat has the same path twice, and is read outside. The
        # model's path is the path of the outermost frame; it has no name.
        is_nested = frame.path == self._frames[-1].path
        self._frames.append(frame)
        try:
            out = next_function(*args, **kwargs)
        finally:
            self._frames.pop()
        if is_nested or isinstance(module, UNNAMED):
            return out
        if not isinstance(out, tuple):
            return self._tap(module, frame, "", out)
        value, *rest = out  # layers with a cache return (x, cache)
        return (self._tap(module, frame, "", value), *rest)

    def _enter(self, module: nn.Module) -> RunningModule:
        """Returns the frame of a module that begins to run."""
        path = module.path
        for frame in reversed(self._frames):
            if path[: len(frame.path)] == frame.path:
                above = frame
                break
        name = above.name
        row = above.row
        if path != above.path:
            call = above.calls[path]
            above.calls[path] += 1
            name = _name_below(above, path[len(above.path) :], call)
        if isinstance(module, Group) and module.has_variable(ROWS, "row"):
            row = module.get_variable(ROWS, "row")
        return RunningModule(Counter(), path, name, module, row)

    def _tap(self, module: nn.Module, frame: RunningModule, part: str, value: Any) -> Any:
        """Replaces a value if it has a patch, and sows it if it is wanted; returns it."""
        names = _expanded(_name(frame, part))
        if isinstance(value, DeferredLogits):
            patched = [name for name in names if name in self.patches]
            if patched:
                raise ConfigError(
                    f"patch of {patched[0]!r}: logits over the vocabulary are computed after the"
                    " modules; patch what the head reads."
                )
            self._declare(names, jax.eval_shape(value.logits))
            if any(map(self.wants, names)):
                self._sow(module, frame, part, value.logits())
            return value
        if not isinstance(value, jax.Array):
            return value
        self._declare(names, value)
        for row, name in enumerate(names):
            if name not in self.patches:
                continue
            replace = functools.partial(self._patched, name)
            if frame.row is None:
                value = replace(value)
            else:
                value = jax.lax.cond(frame.row == row, replace, lambda x: x, value)
        if any(map(self.wants, names)):
            self._sow(module, frame, part, value)
        return value

    def _attend(
        self,
        module: nn.Module,
        next_function: Callable[..., jax.Array],
        q_BTNH: jax.Array,
        k_BSKH: jax.Array,
        v_BSKH: jax.Array,
        args: Arguments,
    ) -> jax.Array:
        """Computes attention, and also its dense logits and weights if they are wanted or patched.

        Only if they are patched, the output is computed from them.
        """
        frame = self._frames[-1]
        B, T, N, _ = q_BTNH.shape
        S = k_BSKH.shape[1]
        names = _expanded(_name(frame, "logits")) + _expanded(_name(frame, "weights"))
        self._declare(names, jax.ShapeDtypeStruct((B, N, T, S), jnp.float32))
        patched = any(name in self.patches for name in names)
        if patched or any(map(self.wants, names)):
            logits_BNTS, visible_BTS = dense.logits(q_BTNH, k_BSKH, v_BSKH, args)
            logits_BNTS = self._tap(module, frame, "logits", logits_BNTS)
            weights_BNTS = self._tap(
                module,
                frame,
                "weights",
                kernels.softmax(logits_BNTS, visible_BTS, dense.sinks_of(args)),
            )
        if patched:
            factor_BNTS = dense.dropout_factor(args, weights_BNTS.shape)
            if factor_BNTS is not None:
                weights_BNTS = weights_BNTS * factor_BNTS
            out_BTNH = kernels.pool(weights_BNTS, v_BSKH)
        else:
            out_BTNH = next_function(q_BTNH, k_BSKH, v_BSKH, args)
        return self._tap(module, frame, "heads", out_BTNH)

    def _declare(self, names: list[str], value: jax.Array | jax.ShapeDtypeStruct) -> None:
        for name in names:
            self.found[name] = jax.ShapeDtypeStruct(value.shape, value.dtype)

    def _sow(self, module: nn.Module, frame: RunningModule, part: str, value: jax.Array) -> None:
        module.sow(
            VALUES, _name(frame, part), value, reduce_fn=lambda _, new: new, init_fn=lambda: None
        )

    def _patched(self, name: str, value: jax.Array) -> jax.Array:
        patch = self.patches[name]
        if callable(patch):
            new = patch(value)
        else:
            new = patch
        shape = None
        has = f"is {new!r}"
        if new is not None and not isinstance(new, str):
            shape = jnp.shape(new)
            has = f"has shape {shape}"
        if shape not in ((), value.shape):
            raise ConfigError(
                f"patch of {name!r}: {has}; must be an array of {value.shape}, as the value it"
                " replaces, one number, or a function of the value that returns either."
            )
        return jnp.broadcast_to(jnp.asarray(new, value.dtype), value.shape)


def apply(
    module: nn.Module,
    variables: Mapping[str, Params],
    taps: Taps,
    *args: Any,
    mutable: CollectionFilter = (),
    **options: Any,
) -> tuple[Any, dict[str, jax.Array], Mapping[str, Params]]:
    """Applies a module, reading and replacing values with `taps`.

    Args:
      module: a model, or any module.
      variables: as for `module.apply`.
      taps: a new object for each call.
      *args, **options: as for `module.apply`.
      mutable: the collections to return updated.

    Returns:
      The output, the values that `taps` wants, by name, and the updated collections.
    """
    if taps.patches:
        rows = _rows(variables["params"])
        if rows:
            variables = {**variables, ROWS: rows}
    mutable = union_filters(mutable, [VALUES])
    with nn.intercept_methods(taps):
        out, state = _untuned(module).apply(variables, *args, mutable=mutable, **options)
    values: dict[str, jax.Array] = {}
    for path, value in jax.tree_util.tree_leaves_with_path(state.get(VALUES, {})):
        name = path[-1].key
        names = _expanded(name)
        if names == [name]:
            values[name] = value
        else:
            values |= dict(zip(names, value, strict=True))
    captured = {}
    for name in taps.found:
        if name in values and taps.wants(name):
            captured[name] = values[name]
    return out, captured, state


def _name_below(above: RunningModule, below: tuple[str, ...], call: int) -> tuple[str, ...]:
    """Returns the name of a module that another one calls.

    Args:
      above: the calling module.
      below: the path from the module `above` to the called one.
      call: the number of earlier calls of this path from `above`.
    """
    if isinstance(above.module, Group):
        kind = int(below[-1].removeprefix("block_"))
        cfg = above.module.cfg
        layers = ",".join(map(str, range(kind, cfg.num_layers, len(cfg.pattern))))
        return (*above.name[:-1], f"layer_{{{layers}}}")
    if isinstance(above.module, Stack) and above.module.cfg.share and below[0].startswith("layer_"):
        first = int(below[0].removeprefix("layer_"))
        sharing = [i for i, other in enumerate(above.module.cfg.share) if other == first]
        return (*above.name, f"layer_{sharing[call]}")
    if call:
        return (*above.name, *below[:-1], f"{below[-1]}:{call}")
    return (*above.name, *below)


def _name(frame: RunningModule, part: str) -> str:
    if not part:
        return "/".join(frame.name)
    return "/".join((*frame.name, part))


def _expanded(name: str) -> list[str]:
    """Returns the names of all layers that the name of a scanned layer lists."""
    layers = LAYERS.search(name)
    if layers is None:
        return [name]
    return [name.replace(layers[0], layer) for layer in layers[1].split(",")]


def found_by(module: nn.Module, *args: Any, **options: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of all values in a call by name, without computing them.

    Args:
      module: a model, or any module.
      *args, **options: as for `module.init`.
    """
    taps = Taps(lambda name: False, {})
    with nn.intercept_methods(taps):
        jax.eval_shape(lambda: _untuned(module).init(jax.random.key(0), *args, **options))
    return taps.found


def _rows(params: Params) -> dict[str, Params]:
    """Returns the row numbers of scanned layers, as a tree with the paths of their groups."""
    rows: dict[str, Params] = {}
    for name, below in params.items():
        if not isinstance(below, Mapping):
            continue
        if name == "layers" and "block_0" in below:
            rows[name] = {"row": jnp.arange(jax.tree.leaves(below)[0].shape[0], dtype=jnp.int32)}
            continue
        inner = _rows(below)
        if inner:
            rows[name] = inner
    return rows


def _untuned(module: nn.Module) -> nn.Module:
    """Returns the module without the optimization that traces identical layers only once."""
    execution = getattr(module, "execution", None)
    if not isinstance(execution, PlacedExecution) or not execution.sharding.traces_layers_once:
        return module
    placement = execution.sharding.without_tuning()
    if hasattr(module, "sharding"):
        return module.clone(sharding=placement)
    return module.clone(execution=dataclasses.replace(execution, sharding=placement))
