"""Reads or replaces hidden states, attention weights and other values inside a model, by name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import flax.linen as nn
import jax
from jax.typing import ArrayLike

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.parameter_shapes import dummy_inputs
from flaxformer_lite.nn.modules import interceptors
from flaxformer_lite.nn.modules.interceptors import Patch
from flaxformer_lite.types import Arrays, Params

# token ids, or the arguments of the call by name
Inputs = ArrayLike | Mapping[str, object]
# the values that `capture` returns by default: hidden states and attention weights
USUAL = (
    "embed",
    "encoder_embed",
    "decoder_embed",
    "layer_*",
    "weights",
)


def capture(
    model: nn.Module,
    params: Params,
    inputs: Inputs,
    names: str | Sequence[str] | None = None,
    *,
    patch: Mapping[str, Patch] | None = None,
    method: str | None = None,
    rngs: Arrays | None = None,
) -> tuple[Any, dict[str, jax.Array]]:
    """Applies a model, and returns values from inside it with its output.

        >>> output, values = capture(model, params, input_ids, "attention/weights")
        >>> values["encoder/layer_0/attention/weights"].shape  # [B, N, T, S]
        (1, 4, 6, 6)

    A name is the path of a module in the parameter tree and stands for its output:
    `encoder/layer_0` is the hidden state after the first block, `decoder/layer_2/mlp` what that
    feed-forward adds to it, `lm_head` the logits. Names are the same for layers that are scanned,
    rematerialized or shared, where `layer_2` is the third to run. Attention also has

    * `logits`, float32 [B, N, T, S]: scaled dot products with bias, before the mask;
    * `weights`, float32 [B, N, T, S]: after the softmax, before dropout; with a cache, S counts its
      slots;
    * `heads`, [B, T, N, H]: the mean of the values for each head, before the output projection.

    Fused and blockwise implementations never hold logits and weights. If you ask for them, they are
    computed again by the dense equation, and take T x S numbers for each head. The second call of a
    module in one pass is `name:1`.

    Works inside `jax.jit`, and gradients pass through values and patches. A stack that scans keeps
    a value of all its layers if you ask for one layer's.

    Args:
      model: a model of this package, or any module of linen.
      params: its parameters.
      inputs: the first argument of the call, input_ids of a model or x of a layer; or a mapping
        with all of its arguments by name, such as attention_mask or cache.
      names: names or patterns, in which `*` stands for any part of a name between slashes. A
        pattern may match the end of a name only: `layer_*` is every hidden state. None is
        embeddings, hidden states and attention weights.
      patch: values to replace, by name: an array of the same shape, one number for all of it, or a
        function of the value. Everything after it is computed from the new value, which is also the
        one returned here. The output of replaced logits or weights is computed by the dense
        equation.
      method: the method to call instead of `__call__`.
      rngs: as for `model.apply`; a `dropout` key turns dropout on.

    Returns:
      The output, and a dict of the values by name, in the order of their computation.

    Raises:
      ConfigError: a name matches nothing, a patch has another shape, or the inputs ask for values
        by themselves.
    """
    if names is None:
        patterns: tuple[str, ...] = USUAL
    elif isinstance(names, str):
        patterns = (names,)
    else:
        patterns = tuple(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(f"names={pattern!r}: a name is text, such as 'decoder/layer_0'.")

    def wants(name: str) -> bool:
        return any(_matches(name, pattern) for pattern in patterns)

    tap = interceptors.Taps(wants, patch or {})
    positional, arguments = call_arguments(inputs)
    flags = sorted({"output_attentions", "output_hidden_states"} & set(arguments))
    if flags:
        raise ConfigError(
            f"{flags[0]}: capture returns values by name; leave it out, and name 'layer_*' or"
            " 'weights'."
        )
    out, values, _ = interceptors.apply(
        model, {"params": params}, tap, *positional, rngs=rngs, method=method, **arguments
    )
    if names is not None:  # a model need not have all of USUAL
        for pattern in patterns:
            if not any(_matches(name, pattern) for name in tap.found):
                problem = f"names={pattern!r}: matches nothing"
                raise ConfigError(_unknown(problem, pattern, tap.found))
    for name in patch or {}:
        if name not in tap.found:
            raise ConfigError(
                _unknown(f"patch of {name!r}: there is no such value", name, tap.found)
            )
    return out, values


def names_of(
    model: nn.Module, inputs: Inputs | None = None, *, method: str | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Lists the names that `capture` knows, with shapes and dtypes, without computing anything.

    Args:
      model: as for `capture`.
      inputs: as for `capture`; None is one token, for models of this package.
      method: as for `capture`.
    """
    if inputs is None:
        if not hasattr(model, "skeleton"):
            raise ConfigError(
                f"inputs of {type(model).__name__}: missing; only models of this package are known"
                " to take one token. Pass what you would call the module with."
            )
        inputs = dummy_inputs(model.skeleton, model.cfg)
    positional, arguments = call_arguments(inputs)
    return interceptors.found_by(model, *positional, method=method, **arguments)


def call_arguments(inputs: Inputs) -> tuple[tuple[ArrayLike, ...], Mapping[str, Any]]:
    """Returns the positional and named arguments of a call."""
    if isinstance(inputs, str):
        raise ConfigError(f"inputs={inputs[:40]!r}: is text; encode it with the model's tokenizer.")
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs,), {}


def _matches(name: str, pattern: str) -> bool:
    return bool(pattern.strip("./")) and PurePosixPath(name).match(pattern)


def _unknown(problem: str, name: str, values: Iterable[str]) -> str:
    kinds = (re.sub(r"^(\w+/)?layer_\d+", "layer_*", known) for known in values)
    listed = ", ".join(dict.fromkeys(kinds))
    return f"{problem}{registry.did_you_mean(name, list(values))}; there are {listed}."
