"""Activations by the names that configs use.

A new one is a row of the table below, of config/choices.py and, under its published name, of
models/weight_map.py.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def _derived(
    activation: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]
) -> jax.custom_jvp:
    """Gives an activation a derivative that is a formula of x alone.

    Only x is then kept for the backward pass.

    XLA keeps whatever the forward and backward formulas share, which can be four arrays as large as
    the layer.
    """
    function = jax.custom_jvp(activation)
    function.defjvp(
        lambda x, d_x: (activation(*x), slope(x[0].astype(jnp.float32)).astype(x[0].dtype) * d_x[0])
    )
    return function


def _gelu(x: jax.Array) -> jax.Array:
    """Computes x Phi(x), the normal distribution by erf where jax.nn.gelu uses erfc.

    XLA computes erfc by two formulas and selects one of them. Narrow numbers need it.
    """
    if x.dtype != jnp.float32:
        return jax.nn.gelu(x, approximate=False)
    return 0.5 * x * (1 + jax.lax.erf(x * 0.5**0.5))


def _gelu_slope(x: jax.Array) -> jax.Array:
    """Computes Phi(x) + x phi(x)."""
    density = jnp.exp(-0.5 * jnp.square(x)) * (2 * math.pi) ** -0.5
    return 0.5 * (1 + jax.lax.erf(x * 0.5**0.5)) + x * density


def _gelu_tanh_slope(x: jax.Array) -> jax.Array:
    """Computes the slope of x s(x) with s = sigmoid(2 z) = (1 + tanh z) / 2."""
    rate = (8 / math.pi) ** 0.5
    s = jax.nn.sigmoid(rate * (x + 0.044715 * x**3))
    return s + x * s * (1 - s) * rate * (1 + 3 * 0.044715 * jnp.square(x))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": _derived(_gelu, _gelu_slope),  # x * Phi(x), BERT's
    # GPT-2's; "gelu_new" elsewhere.
    "gelu_tanh": _derived(functools.partial(jax.nn.gelu, approximate=True), _gelu_tanh_slope),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # CLIP's
    "relu_squared": lambda x: jax.numpy.square(jax.nn.relu(x)),  # Primer's
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}
TORCH_ACTIVATIONS: dict[str, Callable[[ArrayLike], jax.Array]] = {  # of torch.nn, with its defaults
    "CELU": jax.nn.celu,
    "ELU": jax.nn.elu,
    "GELU": functools.partial(jax.nn.gelu, approximate=False),
    "Hardsigmoid": jax.nn.hard_sigmoid,
    "Hardswish": jax.nn.hard_swish,
    "Hardtanh": jax.nn.hard_tanh,
    "Identity": jnp.asarray,
    "LeakyReLU": jax.nn.leaky_relu,
    "LogSigmoid": jax.nn.log_sigmoid,
    "Mish": jax.nn.mish,
    "ReLU": jax.nn.relu,
    "ReLU6": jax.nn.relu6,
    "SELU": jax.nn.selu,
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
    "Tanh": jax.nn.tanh,
    "Tanhshrink": lambda x: jnp.asarray(x) - jax.nn.tanh(x),
}
