"""Initial values of adapters that depend on a matrix, and merging of adapters into matrices."""

import dataclasses
import functools
from typing import TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.nn.functions import quantized
from flaxformer_lite.types import Array

Module = TypeVar("Module", bound=nn.Module)
TABLES = ("lm_head", "vocab")  # modules of the logits
STACKED = "layers/block_"  # in the path of parameters that scan stacks over a leading axis


def merge_adapter(model: Module, params: dict) -> tuple[Module, dict]:
    """Returns the model without its adapter, and parameters with which it computes the same.

    Matrices that are held in few bits become floats.

        >>> model, params = merge_adapter(*load_pretrained("runs/adapted"))  # doctest: +SKIP

    Args:
      model: a linen module of a family; one without an adapter is returned as it is.
      params: its parameters, scanned or not.
    """
    if not hasattr(model, "cfg"):
        raise ConfigError(
            f"merge_adapter of {type(model).__name__}: is not a model of a family; pass the model,"
            " then its parameters."
        )
    model, params = dequantize_params(model, params)
    adapter = model.cfg.adapter
    if adapter is None:
        return model, params
    kept = {}
    adapted: dict[str, dict[str, jax.Array]] = {}  # the factors of each module
    for path, leaf in flatten_dict(params, sep="/").items():
        module, _, name = path.rpartition("/")
        if name in adapter.factors:
            adapted.setdefault(module, {})[name] = _array(leaf)
        else:
            kept[path] = leaf
    for module, by_name in adapted.items():
        merge = adapter.merged
        if STACKED in module:
            merge = jax.vmap(merge)
        factors = tuple(by_name[name] for name in adapter.factors)
        bias = kept.get(f"{module}/bias")
        # The table of the logits is stored with its outputs first.
        is_table = module.endswith(TABLES)
        kernel = _array(kept[f"{module}/kernel"])
        if is_table:
            kernel = kernel.T
        if bias is not None:
            bias = _array(bias)
        kernel, bias = merge(kernel, bias, factors)
        if is_table:
            kernel = kernel.T
        kept[f"{module}/kernel"] = kernel
        if bias is not None:
            kept[f"{module}/bias"] = bias
    plain = model.clone(cfg=dataclasses.replace(model.cfg, adapter=None))
    return plain, unflatten_dict(kept, sep="/")


def dequantize_params(model: Module, params: dict) -> tuple[Module, dict]:
    """Returns the model and its parameters with all matrices as floats."""
    cfg = model.cfg
    if cfg.quantize == "none":
        return model, params
    flat = flatten_dict(params, sep="/")
    restored = {}
    for path, leaf in flat.items():
        kernel, _, part = path.rpartition("/")
        if part == "codes":
            scale = _array(flat[f"{kernel}/scale"])
            matrix = quantized.dequantize(_array(leaf), scale, cfg.quantize)
            restored[kernel] = matrix.astype(cfg.param_dtype)
        elif f"{kernel}/codes" not in flat:
            restored[path] = leaf
    plain = model.clone(cfg=dataclasses.replace(cfg, quantize="none"))
    return plain, unflatten_dict(restored, sep="/")


def initial_factors(adapter: AdapterConfig, params: dict) -> dict[tuple[str, ...], jax.Array]:
    """Returns the initial factors of a new adapter for these flat parameters, by path."""
    factors_by_path: dict[tuple[str, ...], jax.Array] = {}
    if type(adapter).initial_factors is AdapterConfig.initial_factors:
        return factors_by_path
    for module in [path[:-1] for path in params if path[-1] == adapter.factors[0]]:
        initial = adapter.initial_factors
        if STACKED in "/".join(module):
            initial = jax.vmap(initial)
        factors = tuple(params[*module, name] for name in adapter.factors)
        for name, factor in initial(params[*module, "kernel"], factors).items():
            factors_by_path[*module, name] = factor
    return factors_by_path


def with_initial_factors(adapter: AdapterConfig, params: dict) -> dict:
    """Returns the parameters of a new adapter with the factors that depend on a matrix."""
    flat = flatten_dict(params)
    begin = functools.partial(initial_factors, adapter)
    shardings = {path: flat[path].sharding for path in jax.eval_shape(begin, flat)}
    if not shardings:
        return params
    return unflatten_dict(flat | jax.jit(begin, out_shardings=shardings)(flat))


def _array(leaf: Array) -> jax.Array:
    if isinstance(leaf, jax.Array):
        return leaf
    return jnp.asarray(np.asarray(leaf))
