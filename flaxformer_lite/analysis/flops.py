"""Model FLOPs of a step, counted in its jaxpr, and the peak FLOP/s of a device."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr

# Dense bfloat16 FLOP/s of one chip, by jax's `device_kind`, from the makers' data sheets.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}


def peak(device: jax.Device) -> float | None:
    """Returns the device's peak bfloat16 FLOP/s, or None if it is not known."""
    kind = device.device_kind
    # PCIe cards have other peaks than the SXM ones above.
    if kind.startswith("NVIDIA") and "PCIe" not in kind:
        for name, flops in PEAKS.items():
            if kind.startswith(name):
                return flops
    return PEAKS.get(kind)


def count(function: Callable, *args: object) -> int:
    """Counts the FLOPs of a function's matrix products and convolutions, two per multiply-add.

    Scanned bodies count once for each iteration, which the compiler's own cost analysis misses.

    Args:
      function: traced, never run.
      *args: arrays or ShapeDtypeStructs.
    """
    return _walk(jax.make_jaxpr(function)(*args).jaxpr)


def per_step(forward: Callable, *args: object, trained: float = 1.0) -> int:
    """Counts the model FLOPs of a training step, without recomputation.

    These are the forward pass, as many again for the gradients of activations, and as many for
    those of the weights that are trained.

    Args:
      forward: traced, never run.
      *args: arrays or ShapeDtypeStructs.
      trained: share of the parameters that is trained.
    """
    return round((2 + trained) * count(forward, *args))


def _walk(jaxpr: Jaxpr) -> int:
    return sum(_equation(eqn) for eqn in jaxpr.eqns)


def _equation(eqn: Any) -> int:
    name = eqn.primitive.name
    params = eqn.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        inner = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        return 2 * inner * math.prod(eqn.outvars[0].aval.shape)
    if name == "ragged_dot_general":
        numbers = params["ragged_dot_dimension_numbers"]
        (contracted, _), _ = numbers.dot_dimension_numbers
        inner = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        flops = 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        if set(numbers.lhs_ragged_dimensions) <= set(contracted):
            # The result has a matrix for each group, and each row is used for one of them only.
            return flops // eqn.invars[2].aval.shape[-1]
        return flops
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        out_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2 * math.prod(kernel) // out_features * math.prod(eqn.outvars[0].aval.shape)
    if name == "cond":
        return max(_walk(branch.jaxpr) for branch in params["branches"])
    inner = sum(_walk(getattr(sub, "jaxpr", sub)) for sub in _subjaxprs(params))
    if name == "scan":
        return inner * params["length"]
    return inner


def _subjaxprs(params: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for value in params.values():
        if isinstance(value, (tuple, list)):
            values += value
        else:
            values.append(value)
    return [v for v in values if hasattr(v, "eqns") or hasattr(getattr(v, "jaxpr", None), "eqns")]
