"""The functions of a model that leave as a file, over batches and lengths of any size."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jax import export

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.contrib.export.all_experts import with_all_experts
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.nn.functions.activations import TORCH_ACTIVATIONS
from flaxformer_lite.nn.functions.pooling import pool, to_unit_length
from flaxformer_lite.nn.functions.sharding import ActivationSharding
from flaxformer_lite.nn.modules.cache import Cache, LayerCache
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.types import Params

Arrays = Mapping[str, jax.Array]
Size = Any  # an int, or a symbol of jax.export, whose type is private

# A symbol is at least one, and the tokens before a call may be none: so they are a difference.
ROOM = ("slots >= length",)
SOURCE = "source_key_values"  # in the names of what layers take from the encoder's output


class Portable(ActivationSharding):
    """One device of a kind that is not known yet, so that no kernel of one platform is taken."""

    @property
    def platform(self) -> str:
        return "any"

    @property
    def device_kind(self) -> str:
        return "any"


@dataclass(frozen=True)
class ExportProgram:
    """A function of named arrays.

    Attributes:
      name: what it computes, such as `embed`; the name of its file among several.
      function: (parameters, arrays by name) -> arrays by name.
      inputs: names, shapes and dtypes of the arrays; sizes may be symbols of `jax.export`.
      outputs: names of the results, in order.
    """

    name: str
    function: Callable[[Params, Arrays], dict[str, jax.Array]]
    inputs: dict[str, jax.ShapeDtypeStruct]
    outputs: tuple[str, ...]


def programs_of(model: nn.Module, layers: SentenceLayers | None = None) -> list[ExportProgram]:
    """Returns the programs that compute all that a model is for.

    * A sentence model (`layers`): `embed`, with pooling, dense layers and normalization inside.
    * An encoder: `encode`, with what its head computes.
    * A language model: `decode`, which reads the keys and values of all tokens before, of which
      there may be none, and returns them with those of its own tokens. transformers.js and
      optimum name and lay them out in this way.
    * A model that writes after reading: `encode`, which also computes the keys and values that
      each layer of the decoder takes from the text, and `decode`.

    Args:
      model: a model of a family.
      layers: those of a sentence model.

    Raises:
      ConfigError: no program of this kind computes what the model does.
    """
    model = _portable(model)
    if layers is not None:
        return [_embed(model, layers)]
    cfg = model.cfg
    if cfg.skeleton == "encoder_decoder" and cfg.head == "lm":
        encode = _encode_source(model)
        return [encode, _decode(model, encode)]
    if cfg.bidirectional_prompt:
        raise ConfigError(
            "bidirectional_prompt=True: a file cannot tell a prompt, which this model reads both"
            " ways, from what it has written; serve the folder that convert writes."
        )
    if cfg.skeleton == "decoder" and cfg.head == "lm":
        return [_decode(model)]
    if cfg.skeleton in ("encoder", "decoder"):
        return [_encode(model)]
    raise ConfigError(
        f"family={cfg.family!r}, head={cfg.head!r}: export writes encoders, decoders and sentence"
        " models, and encoder-decoders with the head lm."
    )


def _portable(model: nn.Module) -> nn.Module:
    """Returns the model with the plainest execution, in float32, without a platform's kernels."""
    plain = dataclasses.replace(
        model.cfg,
        dtype="float32",
        param_dtype="float32",
        matmul="float",
        cache="float",
        attention="dense",
        scan=False,
        remat="none",
    )
    return model.clone(cfg=with_all_experts(plain), sharding=Portable())


def _apply(model: nn.Module, params: Params, *arguments: object, **inputs: Any) -> Any:
    return model.apply({"params": params}, *arguments, **inputs)


def _ids(shape: Sequence[Size]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.int32)


def _text_inputs(cfg: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the inputs that describe a text."""
    shape = export.symbolic_shape("batch_size, length")
    if cfg.head == "multiple_choice":
        shape = export.symbolic_shape("batch_size, choices, length")
    names = ["input_ids", "attention_mask"]
    if cfg.skeleton == "encoder" and cfg.type_vocab_size:
        names.append("token_type_ids")
    return {name: _ids(shape) for name in names}


def _encode(model: nn.Module) -> ExportProgram:
    """Reads texts at once and computes what the head does."""

    def run(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        output: Output = _apply(model, params, **arrays)
        fields = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
        return {name: fields[name] for name in _results(fields)}

    return _traced("encode", model, run, _text_inputs(model.cfg))


def _results(fields: Mapping[str, jax.Array | None]) -> list[str]:
    """Returns the names of the outputs that a model is for: its head's, or hidden states."""
    there = [name for name, x in fields.items() if x is not None]
    of_head = [name for name in there if "hidden_state" not in name]
    return [name for name in of_head if name != "pooler_output"] or there


def _traced(
    name: str,
    model: nn.Module,
    run: Callable[[Params, Arrays], dict[str, jax.Array]],
    inputs: dict[str, jax.ShapeDtypeStruct],
) -> ExportProgram:
    """Returns the program, with the names of its outputs.

    Raises:
      ConfigError: the model must know the lengths.
    """
    params = unflatten_dict(parameter_shapes(model), sep="/")
    try:
        outputs = jax.eval_shape(run, params, inputs)
    except (jax.errors.InconclusiveDimensionOperation, jax.errors.ConcretizationTypeError) as error:
        first = str(error).partition("\n")[0]
        raise ConfigError(
            f"family={model.cfg.family!r}: computes in another way for long texts, which a file for"
            f" all lengths cannot ({first}); serve the folder that convert writes."
        ) from error
    return ExportProgram(name, run, inputs, tuple(outputs))


def _embed(model: nn.Module, layers: SentenceLayers) -> ExportProgram:
    """Computes the vectors of texts, as sentence-transformers does."""
    if layers.pooling and not layers.include_prompt:
        raise ConfigError(
            "1_Pooling/config.json: include_prompt=false: pooling leaves out a prompt, whose length"
            " a file cannot know; export the encoder instead, with --task encode."
        )

    def dense(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        x_BTD = _apply(model, params, **arrays, method="encode")
        pooling = layers.pooling or ("last" if model.cfg.skeleton == "decoder" else "mean")
        pooled_BD = pool(pooling, x_BTD, arrays["attention_mask"], unit=False)
        return {"sentence_embedding": _finish(layers, pooled_BD)}

    def sparse(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        logits_BTV = _apply(model, params, **arrays).logits
        weights_BTV = jnp.log1p(jax.nn.relu(logits_BTV))
        if layers.activation == "log1p_relu":
            weights_BTV = jnp.log1p(weights_BTV)
        real_BT1 = (arrays["attention_mask"] != 0)[:, :, None]
        weights_BTV = jnp.where(real_BT1, weights_BTV, 0.0)
        reduce = jnp.sum if layers.pooling == "sum" else jnp.max
        return {"sparse_embedding": reduce(weights_BTV, axis=1)}

    def multi_vector(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        x_BTD = _apply(model, params, **arrays, method="encode")
        return {"token_embeddings": _finish(layers, x_BTD)}

    run = {"dense": dense, "sparse": sparse, "multi_vector": multi_vector}[layers.kind]
    return _traced("embed", model, run, _text_inputs(model.cfg))


def _finish(layers: SentenceLayers, x: jax.Array) -> jax.Array:
    """Applies the layers after pooling, as `SentenceLayers.finish`."""
    for layer in layers.dense:
        bias = jnp.expand_dims(layer.bias_O, tuple(range(x.ndim - 1)))
        x = TORCH_ACTIVATIONS[layer.activation](x @ layer.kernel_DO + bias)
    if layers.normalize:
        x = to_unit_length(x)
    return x[..., : layers.size or None]


class HeadSizes(NamedTuple):
    """The sizes of one layer's keys and values, [batch, heads, past, size]."""

    heads: int
    key: int
    value: int


def _decode(model: nn.Module, encode: ExportProgram | None = None) -> ExportProgram:
    """Reads the tokens that follow those of the cache.

    Args:
      model: the model.
      encode: the program that reads the source of an encoder-decoder.
    """
    sizes = _cache_sizes(model)
    names = "batch_size, slots, length, source"
    batch, slots, length, source = export.symbolic_shape(names, constraints=ROOM)
    inputs = {"input_ids": _ids((batch, length))}
    mask = "attention_mask"
    read: tuple[None, ...] = ()
    if encode is None:
        inputs[mask] = _ids((batch, slots))
    else:
        mask = "encoder_attention_mask"
        inputs[mask] = _ids((batch, source))
        read = (None,)  # the encoder's output, as the cache has its keys and values
    inputs |= _past(model, sizes, batch, slots - length)
    if encode is not None:
        for name, spec in _of_small_batch(model, encode).items():
            if name.startswith(SOURCE):
                _, heads, _, size = spec.shape
                inputs[name] = jax.ShapeDtypeStruct((batch, heads, source, size), spec.dtype)

    def run(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        x_BTD, cache = _apply(
            model,
            params,
            arrays["input_ids"],
            *read,
            attention_mask=arrays[mask],
            cache=_cache(sizes, arrays),
            cache_index=jnp.asarray(_held(arrays), jnp.int32),
            method="decode",
        )
        logits = _apply(model, params, x_BTD, method="project").logits()
        return {"logits": logits} | _keys_and_values("present", cache)

    return _traced("decode", model, run, inputs)


def _encode_source(model: nn.Module) -> ExportProgram:
    """Reads the source, and computes the keys and values that the decoder takes from it."""
    sizes = _cache_sizes(model)

    def run(params: Params, arrays: Arrays) -> dict[str, jax.Array]:
        mask_BS = arrays["attention_mask"]
        x_BSD = _apply(model, params, **arrays, method="encode")
        start_B1 = jnp.zeros((mask_BS.shape[0], 1), jnp.int32)
        empty = {
            name: jnp.zeros(spec.shape, spec.dtype)
            for name, spec in _past(model, sizes, mask_BS.shape[0], 0).items()
        }
        _, source_cache = _apply(
            model,
            params,
            start_B1,
            x_BSD,
            attention_mask=mask_BS,
            cache=_cache(sizes, {"input_ids": start_B1, **empty}),
            method="decode",
        )
        return {"encoder_last_hidden_state": x_BSD} | _keys_and_values(
            SOURCE, source_cache, "cross_"
        )

    return _traced("encode", model, run, _text_inputs(model.cfg))


def _of_small_batch(model: nn.Module, encode: ExportProgram) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of what the encoder computes for two texts of three tokens."""
    params = unflatten_dict(parameter_shapes(model), sep="/")
    # Numbers, as the shapes of symbols cannot be taken apart; any two do.
    return jax.eval_shape(encode.function, params, {name: _ids((2, 3)) for name in encode.inputs})


def _cache_sizes(model: nn.Module) -> list[HeadSizes]:
    """Returns the sizes of what each layer of the decoder keeps.

    Raises:
      ConfigError: a layer keeps something other than keys and values.
    """
    cfg = model.cfg
    layers = jax.eval_shape(lambda: build_layers.init_cache(cfg, 2, 2))
    sizes = []
    for layer in layers:
        if not isinstance(layer, LayerCache):
            raise ConfigError(
                f"family={cfg.family!r}: layers that keep something other than keys and values are"
                " not exported; serve the folder that convert writes."
            )
        key = layer.k_BKSH.shape
        sizes.append(HeadSizes(key[1], key[3], layer.v_BKSH.shape[3]))
    return sizes


def _past(
    model: nn.Module, sizes: list[HeadSizes], batch: Size, slots: Size
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns keys and values of `slots` tokens, as transformers.js names them."""
    dtype = jnp.dtype(model.cfg.dtype)
    specs = {}
    for number, layer in enumerate(sizes):
        name = f"past_key_values.{number}"
        key = (batch, layer.heads, slots, layer.key)
        value = (batch, layer.heads, slots, layer.value)
        specs[f"{name}.key"] = jax.ShapeDtypeStruct(key, dtype)
        specs[f"{name}.value"] = jax.ShapeDtypeStruct(value, dtype)
    return specs


def _held(arrays: Arrays) -> Size:
    """Returns the number of tokens that the cache holds."""
    if "attention_mask" in arrays:
        return arrays["attention_mask"].shape[1] - arrays["input_ids"].shape[1]
    return arrays["past_key_values.0.key"].shape[2]


def _cache(sizes: list[HeadSizes], arrays: Arrays) -> list[LayerCache]:
    """Builds caches of the tokens before, with room for those of this call."""
    length = arrays["input_ids"].shape[1]

    def with_room(past_BKPH: jax.Array) -> jax.Array:
        batch, heads, _, size = past_BKPH.shape
        room_BKTH = jnp.zeros((batch, heads, length, size), past_BKPH.dtype)
        return jnp.concatenate([past_BKPH, room_BKTH], axis=2)

    layers = []
    held = jnp.asarray(_held(arrays), jnp.int32)
    for number in range(len(sizes)):
        name = f"past_key_values.{number}"
        layers.append(
            LayerCache(
                with_room(arrays[f"{name}.key"]),
                with_room(arrays[f"{name}.value"]),
                held,
                cross_k_BKSH=arrays.get(f"{SOURCE}.{number}.key"),
                cross_v_BKSH=arrays.get(f"{SOURCE}.{number}.value"),
            )
        )
    return layers


def _keys_and_values(name: str, cache: Cache, part: str = "") -> dict[str, jax.Array]:
    """Returns the keys and values of all layers, of the tokens or of the source (`cross_`)."""
    fields = {}
    for number, layer in enumerate(cache):
        fields[f"{name}.{number}.key"] = getattr(layer, f"{part}k_BKSH")
        fields[f"{name}.{number}.value"] = getattr(layer, f"{part}v_BKSH")
    return fields
