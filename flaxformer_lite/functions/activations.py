"""Activations by the names that configs use; a new one is a row."""

import functools
from collections.abc import Callable

import jax

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),  # x * Phi(x), BERT's
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),  # GPT-2's; "gelu_new" elsewhere
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),  # CLIP's
    "relu_squared": lambda x: jax.numpy.square(jax.nn.relu(x)),  # Primer's
    "silu": jax.nn.silu,
    "tanh": jax.numpy.tanh,
}
