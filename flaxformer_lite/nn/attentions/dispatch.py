"""Chooses an attention implementation, for modules and for direct calls on arrays."""

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from flaxformer_lite import registry
from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.nn.attentions.arguments import Arguments, Bias
from flaxformer_lite.nn.attentions.mask_structure import AUTO
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding

LOG = logging.getLogger("flaxformer_lite")
# The kernel that `auto` takes on a platform where it supports the call: one that devices of its
# kind have run. cuDNN's is asked for by name until one has.
KERNELS = {"tpu": "splash"}
MAX_DENSE_LENGTH = 128  # up to this length, a kernel's padding costs more than the kernel saves
# The largest T x S for which `auto` holds all logits. On a CPU, blockwise attention is twice as
# fast at 1024 x 1024, and equally fast at 512 x 512.
MAX_DENSE_PAIRS = 512 * 1024
# The fewest rows for which causal attention is chunked on a CPU: with its gradient it is 1.45 times
# as fast at 256 rows, 1.3 times at 512.
CHUNKED_FROM = 256


def attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    /,
    *,
    mask: masks.Mask | jax.Array | None = None,
    bias: Bias | jax.Array | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    q_index: jax.Array | None = None,
    k_index: jax.Array | None = None,
    sinks: jax.Array | None = None,
    sharding: ActivationSharding = UNSHARDED,
    implementation: str = "auto",
) -> jax.Array:
    """Computes `softmax(scale Q K^T + bias) V` with the best implementation for these devices.

        >>> q = k = v = jnp.ones((2, 5, 4, 8))
        >>> attention(q, k, v, mask=masks.causal()).shape
        (2, 5, 4, 8)

    The order is scale, soft cap, bias, mask, softmax, dropout. Logits and softmax are float32 for
    any input dtype. A row that sees nothing has output zero and passes no gradient back.

    Args:
      q_BTNH: queries.
      k_BSKH: keys. K = N is multi-head, K = 1 multi-query, anything between grouped-query: query
        head n reads key head n // (N / K).
      v_BSKH: values; their head width may differ from the keys'.
      mask: a `Mask`, evaluated at slots `q_index` and `k_index`; or a boolean array [B or 1, T, S],
        True = may attend.
      bias: finite logits to add: an array [B or 1, N or 1, T, S], or a function (q, rows, columns)
        that returns one, where rows and columns are int32 indices into `q` and `k` as passed here
        (not slots).
      scale: factor on the dot products; None is 1 / sqrt(H).
      softcap: c of `c tanh(logits / c)`; 0 for none.
      dropout_rate: fraction of the weights to drop.
      dropout_key: PRNG key, needed to drop any.
      q_index: int32 [T], the slot of each row, for masks; None is 0, 1, 2 ...
      k_index: int32 [S], the slot of each column; a negative column is empty, and no row sees it.
      sinks: float [N], for each query head the logit of one more column, which every row sees and
        which has no value (gpt-oss); a row's weights then sum to less than one.
      sharding: where the arrays live; `MeshSharding(mesh)` inside a program over a mesh.
      implementation: a file of this folder, or `auto`, which takes a kernel of the platform that
        supports the call (splash on TPUs), else XLA: blockwise if T x S is large, else dense, or
        chunked_causal on a CPU. The choice and its reason are logged once, at level INFO of the
        logger "flaxformer_lite".

    Returns:
      Array [B, T, N, H] in the dtype of the values.

    Raises:
      ConfigError: the implementation cannot do this call, or not on these devices; the message says
        why.
      ValueError: there is no such implementation, or shapes do not fit each other.
    """
    _check_arrays(q_BTNH, k_BSKH, v_BSKH, bias, sinks)
    _check_numbers(scale, softcap, dropout_rate, dropout_key)
    if q_index is not None:
        q_index = jnp.asarray(q_index, jnp.int32)
    if k_index is not None:
        k_index = jnp.asarray(k_index, jnp.int32)
    args = Arguments(
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        q_index=q_index,
        k_index=k_index,
        sinks_N=sinks,
        sharding=sharding,
    )
    implemented = select_implementation(implementation, q_BTNH.shape[1], k_BSKH.shape[1], sharding)
    return implemented(q_BTNH, k_BSKH, v_BSKH, args)


def _check_arrays(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, bias: Any, sinks: Any
) -> None:
    for name, array in (("q", q_BTNH), ("k", k_BSKH), ("v", v_BSKH)):
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name} is {type(array).__name__}: must be an array.")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} is {array.dtype}: attention is of floats; use astype.")
    if bias is not None and not callable(bias) and not hasattr(bias, "ndim"):
        raise TypeError(f"bias is {type(bias).__name__}: must be an array or a function.")
    if sinks is not None and not hasattr(sinks, "dtype"):
        raise TypeError(f"sinks is {type(sinks).__name__}: must be an array of one logit per head.")


def _check_numbers(scale: Any, softcap: Any, dropout_rate: Any, dropout_key: Any) -> None:
    for name, number in (("scale", scale), ("softcap", softcap), ("dropout_rate", dropout_rate)):
        if not _is_number(number) and not (number is None and name == "scale"):
            raise TypeError(f"{name}={number!r}: must be one number.")
    # A traced number has no value yet to compare.
    if not isinstance(softcap, jax.core.Tracer) and softcap < 0:
        raise ValueError(f"softcap={softcap}: must be positive, or 0 for none.")
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"dropout_rate={dropout_rate}: must be at least 0 and less than 1.")
    if dropout_rate and not hasattr(dropout_key, "dtype"):
        raise ValueError(
            f"dropout_rate={dropout_rate}, dropout_key={dropout_key}: weights are dropped by a key;"
            " pass dropout_key=jax.random.key(...), or dropout_rate=0 to drop none."
        )


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) or (hasattr(x, "dtype") and jnp.ndim(x) == 0)


def attend(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, /, **options: Any) -> jax.Array:
    """Computes `attention` with the dense implementation, the reference for the others.

    Args:
      q_BTNH, k_BSKH, v_BSKH, **options: as in `attention`.
    """
    if "implementation" in options:
        raise ValueError(
            f"attend(implementation={options['implementation']!r}): attend is the dense one; call"
            " attention, which takes an implementation."
        )
    return attention(q_BTNH, k_BSKH, v_BSKH, **options, implementation="dense")


def select_implementation(
    name: str, target: int, source: int, sharding: ActivationSharding = UNSHARDED
) -> Callable:
    """Returns the attention function (q, k, v, args) of this name for the given sizes.

    Args:
      name: a file of this folder, or `auto`, as in `attention`.
      target: T, the number of queries; a symbolic length gives dense attention.
      source: S, the number of keys.
      sharding: where the arrays live.

    Raises:
      ConfigError: the implementation needs known lengths, or other devices.
      ValueError: there is no such implementation.
    """
    shards = sharding.num_shards("T").count
    context_attention = sharding.context_attention
    # First of all: after the exchange each device has whole sequences, and the choice is made again
    # as if none were split.
    if shards > 1 and context_attention == "all_to_all":
        over_heads = select_implementation(name, target, source, sharding.over_heads())
        return registry.resolve("context_attentions", context_attention).spread(over_heads)
    platform = sharding.platform
    # A symbolic length cannot be compared with a number.
    if not isinstance(target, int) or not isinstance(source, int):
        if name not in ("auto", "dense"):
            raise ConfigError(
                f"attention {name!r}: needs known lengths; for a symbolic one, {AUTO}."
            )
        return registry.resolve("attentions", "dense").attend
    if shards > 1 and context_attention == "ring":
        if name not in ("auto", "blockwise"):
            raise ConfigError(
                f"attention {name!r}: mesh.context_attention='ring' computes block by block; set"
                " model.attention=auto, or another mesh.context_attention."
            )
        return registry.resolve("context_attentions", context_attention).attend
    if name == "auto":
        name = "dense"
        if target // shards * source > MAX_DENSE_PAIRS:
            name = "blockwise"
        if shards == 1 and target > 1 and platform in KERNELS:
            return functools.partial(_kernel_or, KERNELS[platform], name)
        if shards == 1 and target >= CHUNKED_FROM and name == "dense" and platform == "cpu":
            name = "chunked_causal"
        _log_choice(f"attention: {name}")
    module = registry.resolve("attentions", name)
    needed = getattr(module, "PLATFORM", platform)
    if platform != needed:
        raise ConfigError(
            f"attention {name!r}: is a kernel for {needed} devices, but these are {platform};"
            f" {AUTO}."
        )
    attend = module.attend
    if shards > 1:
        return registry.resolve("context_attentions", "gather").spread(attend)
    return attend


def unsupported_platform(
    wanted: str, platforms: tuple[str, ...], sharding: ActivationSharding
) -> str:
    """Returns why a kernel for the `wanted` devices cannot run on these, or an empty string."""
    if sharding.platform in platforms:
        return ""
    return f"the kernel is for {wanted}, not for {sharding.platform}"


def is_interpreted(sharding: ActivationSharding) -> bool:
    """Returns whether a kernel for TPUs is interpreted, as in tests on a CPU."""
    return sharding.platform != "tpu"


def _kernel_or(
    kernel: str,
    otherwise: str,
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKH: jax.Array,
    args: Arguments,
) -> jax.Array:
    """Computes attention with the kernel if it supports the call, or else with `otherwise`."""
    # Decided in the call, as only it knows the mask, the bias and the dropout.
    module = registry.resolve("attentions", kernel)
    if max(q_BTNH.shape[1], k_BSKH.shape[1]) <= MAX_DENSE_LENGTH:
        reason = f"at most {MAX_DENSE_LENGTH} positions"
    else:
        unsupported = module.unsupported_reason(q_BTNH, k_BSKH, v_BSKH, args)
        if not unsupported:
            _log_choice(f"attention: {kernel}")
            return module.attend(q_BTNH, k_BSKH, v_BSKH, args)
        reason = f"not {kernel}, {unsupported}"
    _log_choice(f"attention: {otherwise} ({reason})")
    return registry.resolve("attentions", otherwise).attend(q_BTNH, k_BSKH, v_BSKH, args)


@functools.cache
def _log_choice(line: str) -> None:
    """Logs a choice the first time that a layer makes it."""
    LOG.info(line)
