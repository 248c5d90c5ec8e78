"""Calls of linear functions whose transpose is written by hand.

`jax.custom_vjp` gives a function a backward pass of its own, but refuses forward mode. With a
`jax.custom_jvp` whose rule ends in `linear_call`, a function has both: forward mode evaluates the
linear function, and reverse mode its transpose. Both may be differentiated in turn, by their
residuals too, as far as JAX differentiates what they are made of; `jax.custom_derivatives
.linear_call` takes no derivative by residuals, which a Hessian-vector product needs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.tree_util import PyTreeDef

from flaxformer_lite import private_names
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.types import Array

Residuals = TypeVar("Residuals")
Inputs = TypeVar("Inputs")
ad, batching, mlir = private_names.primitive_rules()


class _Call(NamedTuple, Generic[Residuals, Inputs]):
    apply: Callable[[Residuals, Inputs], jax.Array]
    transpose: Callable[[Residuals, jax.Array], Inputs]
    residuals: PyTreeDef
    inputs: PyTreeDef

    def split(self, arrays: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Returns the residuals, where constants may be numpy's, and the inputs."""
        count = self.residuals.num_leaves
        residuals: list[Array] = []
        for x in arrays[:count]:
            if isinstance(x, np.ndarray):
                x = jnp.asarray(x)
            residuals.append(x)
        return residuals, list(arrays[count:])


def linear_call(
    apply: Callable[[Residuals, Inputs], jax.Array],
    transpose: Callable[[Residuals, jax.Array], Inputs],
    residuals: Residuals,
    inputs: Inputs,
    like: jax.Array,
) -> jax.Array:
    """Computes `apply(residuals, inputs)`, an array with the shape and dtype of `like`.

    Args:
      apply: linear in the inputs.
      transpose: maps residuals and a cotangent of the result to cotangents of the inputs, as a tree
        of their structure.
      residuals: a tree of arrays of any dtype.
      inputs: a tree of arrays of floats.
    """
    flat_residuals, residuals_tree = jax.tree.flatten(residuals)
    flat_inputs, inputs_tree = jax.tree.flatten(inputs)
    # Residuals too: `transpose` may differentiate by them, and must leave the sum over devices to
    # the marks of the inputs.
    flat_residuals = [_vary_like(x, like) for x in flat_residuals]
    flat_inputs = [_vary_like(x, like) for x in flat_inputs]
    call = _Call(apply, transpose, residuals_tree, inputs_tree)
    return _linear_call.bind(
        *flat_residuals, *flat_inputs, call=call, out=jax.typeof(like), mapped=0
    )


def _vary_like(x: Array, like: jax.Array) -> Array:
    """Marks `x` as varying over the mesh axes of a `jax.shard_map` over which `like` varies.

    JAX marks the arguments of its own primitives itself; the cotangent of a mark is a sum over the
    axes, which the gradient of a replicated weight needs.
    """
    axes = jax.typeof(like).manual_axis_type.varying - jax.typeof(x).manual_axis_type.varying
    if not axes:
        return x
    return jax.lax.pcast(x, tuple(axes), to="varying")


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def forbid_reverse_mode(x: jax.Array, message: str) -> jax.Array:
    """Returns x, whose derivative can be taken forwards, and not backwards.

    Loops with traced bounds have no reverse mode; JAX reports that itself.

    Args:
      x: a result of such loops.
      message: the sentence of the ConfigError if x is differentiated backwards.
    """
    return x


@forbid_reverse_mode.defjvp
def _forbid_reverse_mode_jvp(
    message: str, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    def refuse(residuals: tuple[()], d_x: jax.Array) -> jax.Array:
        raise ConfigError(message)

    (x,) = primals
    (d_x,) = tangents
    return x, linear_call(lambda residuals, d_x: d_x, refuse, (), d_x, like=x)


def _evaluate(*arrays: Array, call: _Call, out: object, mapped: int) -> jax.Array:
    def apply(*arrays: Array) -> jax.Array:
        residuals, inputs = call.split(arrays)
        return call.apply(call.residuals.unflatten(residuals), call.inputs.unflatten(inputs))

    for _ in range(mapped):
        apply = jax.vmap(apply)
    return apply(*arrays)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Array], *, call: _Call, out: object, mapped: int
) -> tuple[jax.Array, jax.Array]:
    bind = functools.partial(_linear_call.bind, call=call, out=out, mapped=mapped)
    evaluate = functools.partial(_evaluate, call=call, out=out, mapped=mapped)
    residuals, _ = call.split(primals)
    d_residuals, d_inputs = call.split(tangents)
    # The usual case: the function is linear in its inputs, so the tangent is the same call.
    if all(isinstance(d, ad.Zero) for d in d_residuals):
        d_inputs = [ad.instantiate_zeros(d) for d in d_inputs]
        return bind(*primals), bind(*residuals, *d_inputs)
    d_arrays = tuple(_tangent(x, d) for x, d in zip(primals, tangents, strict=True))
    return jax.jvp(evaluate, tuple(primals), d_arrays)


def _tangent(x: Array, d: Array) -> Array:
    if not isinstance(d, ad.Zero):
        return d
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _transpose(
    d_out: jax.Array, *arrays: Array, call: _Call, out: object, mapped: int
) -> list[Array | None]:
    residuals, inputs = call.split(arrays)
    none: list[Array | None] = [None] * len(residuals)
    if isinstance(d_out, ad.Zero):
        return none + [None] * len(inputs)

    def transpose(d_out: jax.Array, *residuals: Array) -> list[jax.Array]:
        return jax.tree.leaves(call.transpose(call.residuals.unflatten(residuals), d_out))

    for _ in range(mapped):
        transpose = jax.vmap(transpose)
    d_inputs = transpose(d_out, *residuals)
    wanted = map(ad.is_undefined_primal, inputs)
    return none + [d if is_wanted else None for is_wanted, d in zip(wanted, d_inputs, strict=True)]


def _batch(
    arrays: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    call: _Call,
    out: jax.core.ShapedArray,
    mapped: int,
) -> tuple[jax.Array, int]:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    mapped_arrays = []
    for x, axis in zip(arrays, axes, strict=True):
        if axis is None:
            mapped_arrays.append(jnp.broadcast_to(x, (size, *x.shape)))
        else:
            mapped_arrays.append(jnp.moveaxis(x, axis, 0))
    out = out.update(shape=(size, *out.shape))
    return _linear_call.bind(*mapped_arrays, call=call, out=out, mapped=mapped + 1), 0


_linear_call = Primitive("linear_call_with_residuals")
_linear_call.def_impl(_evaluate)
_linear_call.def_abstract_eval(lambda *_, out, **__: out)
ad.primitive_jvps[_linear_call] = _jvp
ad.primitive_transposes[_linear_call] = _transpose
batching.primitive_batchers[_linear_call] = _batch
mlir.register_lowering(_linear_call, mlir.lower_fun(_evaluate, multiple_results=False))
