"""Reads flaxformer's decoder-only models from checkpoints of T5X.

Attention and feed-forward may be sequential, or parallel with fused kernels. A sequential model
with rotary positions and gated feed-forwards is read as Granite, which computes the same. All
others are read as `t5_decoder`, a family that transformers does not have.

Reference: flaxformer/architectures/t5/{t5_architecture,parallel_fused_decoder}.py of April 2024.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flaxformer_lite.contrib.t5x.layers import (
    Checkpoint,
    as_torch,
    by_layer,
    is_scanned,
    read_activation,
)
from flaxformer_lite.files.read import Json, quote_name, quote_value
from flaxformer_lite.pretrained.arranged_tensors import Readable, add_tensor
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

NORM = "decoder_norm/scale"
TABLE = "decoder/token_embedder/embedding"
LOGITS = "decoder/logits_dense/kernel"
POSITIONS = "decoder/relpos_bias/rel_embedding"
LAYER = re.compile(r"decoder/layers_(\d+)/(.+)")
FIRST = "decoder/layers_0"
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
LENGTH = 2048  # max_position_embeddings; nothing that the model computes depends on it
T5_NAMES = {
    TABLE: "shared.weight",
    f"decoder/{NORM}": "decoder.final_layer_norm.weight",
    POSITIONS: f"decoder.block.0.{BIAS}",
    LOGITS: "lm_head.weight",
    "pre_self_attention_layer_norm/scale": "layer.0.layer_norm.weight",
    "layer_norm/scale": "layer.0.layer_norm.weight",
    "relpos_bias/rel_embedding": BIAS,
    "self_attention/query/kernel": "layer.0.SelfAttention.q.weight",
    "self_attention/key/kernel": "layer.0.SelfAttention.k.weight",
    "self_attention/value/kernel": "layer.0.SelfAttention.v.weight",
    "self_attention/out/kernel": "layer.0.SelfAttention.o.weight",
    "pre_mlp_layer_norm/scale": "layer.1.layer_norm.weight",
    "mlp/wi/kernel": "layer.1.DenseReluDense.wi.weight",
    "mlp/wi_0/kernel": "layer.1.DenseReluDense.wi_0.weight",
    "mlp/wi_1/kernel": "layer.1.DenseReluDense.wi_1.weight",
    "mlp/wo/kernel": "layer.1.DenseReluDense.wo.weight",
}
GRANITE_NAMES = {
    TABLE: "model.embed_tokens.weight",
    f"decoder/{NORM}": "model.norm.weight",
    LOGITS: "lm_head.weight",
    "pre_self_attention_layer_norm/scale": "input_layernorm.weight",
    "self_attention/query/kernel": "self_attn.q_proj.weight",
    "self_attention/key/kernel": "self_attn.k_proj.weight",
    "self_attention/value/kernel": "self_attn.v_proj.weight",
    "self_attention/out/kernel": "self_attn.o_proj.weight",
    "pre_mlp_layer_norm/scale": "post_attention_layernorm.weight",
    "mlp/wi_0/kernel": "mlp.gate_proj.weight",
    "mlp/wi_1/kernel": "mlp.up_proj.weight",
    "mlp/wo/kernel": "mlp.down_proj.weight",
}
READABLE = "decoders of flaxformer with relative or rotary positions are read"


def is_one(arrays: Mapping[str, Readable]) -> bool:
    """Returns whether the arrays have a decoder, and no encoder."""
    has_decoder = NORM in arrays or f"decoder/{NORM}" in arrays
    return has_decoder and not any("encoder/" in path for path in arrays)


def describe(checkpoint: Checkpoint, config: Json) -> list[str]:
    """Describes the model, and what was assumed."""
    arrays = _by_layer(checkpoint)
    layers = f"{config.get('num_layers', config.get('num_hidden_layers'))} layers"
    if is_scanned(checkpoint.arrays):
        layers += " in a scanned stack"
    if _is_parallel(arrays):
        layers += ", attention and feed-forward in parallel"
    width = config.get("d_model", config.get("hidden_size"))
    heads = config.get("num_heads", config.get("num_attention_heads"))
    positions = "relative positions"
    if "rope_theta" in config or "rope_parameters" in config:
        positions = "rotary positions"
    vocabulary = f"vocabulary {config['vocab_size']:,}"
    if config["tie_word_embeddings"]:
        vocabulary += " (tied)"
    lines = [
        f"a decoder of flaxformer with {layers}, width {width}, {heads} heads,"
        f" {config['num_key_value_heads']} of keys and values, {positions}, {vocabulary}; read as"
        f" {config['architectures'][0]}"
    ]
    assumed = []
    if "activations" not in checkpoint.gin:
        assumed.append(f"activation {config.get('feed_forward_proj', config.get('hidden_act'))}")
    if _is_fused(checkpoint) and "rescale_logits" not in checkpoint.gin:
        assumed.append("rescale_logits=True")
    if assumed:
        lines.append(f"assumed, as no gin file says it: {', '.join(assumed)}")
    if config["model_type"] == "t5_decoder":
        lines.append("transformers has no such model: what is written is read here alone")
    return lines


def read_config(checkpoint: Checkpoint) -> Json:
    """Derives config.json: sizes from shapes, the rest from the gin file.

    Raises:
      WeightsError: the decoder is of another kind, or its positions or heads are unknown.
    """
    arrays = _by_layer(checkpoint)
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    checkpoint.refuse("center_scale_at_zero", "use_extra_logit")
    gated = f"{FIRST}/mlp/wi_0/kernel" in shapes
    up = f"{FIRST}/mlp/wi/kernel"
    if gated:
        up = f"{FIRST}/mlp/wi_0/kernel"
    query = f"{FIRST}/self_attention/query/kernel"
    key = f"{FIRST}/self_attention/key/kernel"
    for needed in (TABLE, up, query, key):
        rank = len(shapes.get(needed, ()))
        if rank < 2 or (needed == TABLE and rank > 2):
            raise WeightsError(
                f"{checkpoint.place}: a decoder of flaxformer whose {needed} is"
                f" {quote_value(shapes.get(needed, 'missing'))}; {READABLE}."
            )
    vocab_size, d_model = shapes[TABLE]
    bias_of_layer = f"{FIRST}/relpos_bias/rel_embedding"
    table = shapes.get(bias_of_layer, shapes.get(POSITIONS))
    query_width = math.prod(shapes[query][1:])
    key_width = math.prod(shapes[key][1:])
    if table and checkpoint.flag("use_rotary_embedding"):
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer with relative positions and"
            " use_rotary_embedding=True; one of both is read."
        )
    positions: Json = {}
    if not table:
        positions["rope_theta"] = _rotary(checkpoint, shapes)
    heads, kv_heads = _heads(checkpoint, shapes, table, query_width, key_width)
    layers = set()
    for path in shapes:
        match = LAYER.fullmatch(path)
        if match:
            layers.add(int(match[1]))
    sizes = _Sizes(
        vocab_size=vocab_size,
        width=d_model,
        mlp=math.prod(shapes[up][1:]),
        layers=max(layers) + 1,
        heads=heads,
        kv_heads=kv_heads,
        head=query_width // heads,
        tied=LOGITS not in shapes,
    )
    projection = read_activation(checkpoint, gated)
    is_parallel = _is_parallel(arrays)
    if table is None and gated and not is_parallel:
        return _granite_config(sizes, projection) | positions
    if table is not None:
        positions = {
            "relative_attention_num_buckets": table[1],
            "relative_attention_max_distance": checkpoint.number("max_distance", 128),
            "relative_attention_per_layer": bias_of_layer in shapes,
        }
    return _t5_decoder_config(sizes, projection, is_parallel) | positions


class _Sizes(NamedTuple):
    """The sizes of a decoder, and whether its logits are tied to the token embeddings."""

    vocab_size: int
    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    tied: bool


def _granite_config(sizes: _Sizes, projection: str) -> Json:
    names = {"gelu": "gelu_pytorch_tanh"}
    name = projection.removeprefix("gated-")
    # flaxformer divides tied logits by the root of the width.
    logits_scaling = 1.0
    if sizes.tied:
        logits_scaling = sizes.width**0.5
    return {
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.mlp,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head,
        "hidden_act": names.get(name, name),
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": logits_scaling,
        "tie_word_embeddings": sizes.tied,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _t5_decoder_config(sizes: _Sizes, projection: str, is_parallel: bool) -> Json:
    return {
        "model_type": "t5_decoder",
        "architectures": ["T5DecoderForCausalLM"],
        "vocab_size": sizes.vocab_size,
        "d_model": sizes.width,
        "d_kv": sizes.head,
        "d_ff": sizes.mlp,
        "num_layers": sizes.layers,
        "num_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "feed_forward_proj": projection,
        "parallel": is_parallel,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "tie_word_embeddings": sizes.tied,
        "scale_decoder_outputs": sizes.tied,
        "is_encoder_decoder": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def open_weights(checkpoint: Checkpoint, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names of their class.

    Raises:
      WeightsError: the checkpoint holds a parameter that the class does not have.
    """
    arrays = _by_layer(checkpoint)
    if config.get("model_type") == "granite":
        names = GRANITE_NAMES
        above = "model.layers"
        heads = config["num_attention_heads"]
    else:
        names = T5_NAMES
        above = "decoder.block"
        heads = config["num_heads"]
    rescaled = _is_rescaled(checkpoint)
    branch = 1.0  # unfused parallel branches are divided by the root of 2
    if _is_parallel(arrays) and not _is_fused(checkpoint):
        branch = 2**-0.5
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        match = LAYER.fullmatch(path)
        inner = path
        if match:
            inner = match[2]
        name = names.get(inner)
        if name is None:
            raise WeightsError(
                f"{checkpoint.place}: holds {quote_name(path)} of shape"
                f" {quote_value(list(array.shape))}; {READABLE}."
            )
        scale = 1.0
        if path.endswith(("/out/kernel", "/wo/kernel")):
            scale = branch
        elif path.endswith("/query/kernel") and rescaled:
            scale = (math.prod(array.shape[1:]) // heads) ** -0.5
        full = name
        if match:
            full = f"{above}.{match[1]}.{name}"
        tensor = as_torch(checkpoint, path, array, scale=scale)
        add_tensor(tensors, full, tensor, f"{checkpoint.place}: {path}")
    return tensors


def _is_parallel(arrays: Mapping[str, object]) -> bool:
    return f"{FIRST}/layer_norm/scale" in arrays


def _is_fused(checkpoint: Checkpoint) -> bool:
    """Returns whether queries are fused with the feed-forward, or with keys and values."""
    fused = re.compile(r"(^|.*/)(q_wi_fused|qkv_fused|kv_fused)/kernel")
    return any(fused.fullmatch(path) for path in checkpoint.arrays)


def _is_rescaled(checkpoint: Checkpoint) -> bool:
    """Returns whether logits are divided by the root of the head's width.

    The alternative is a smaller initial kernel of the queries, which a fused kernel cannot have.
    """
    if "rescale_logits" in checkpoint.gin:
        return checkpoint.flag("rescale_logits")
    return _is_fused(checkpoint)


def _rotary(checkpoint: Checkpoint, paths: Mapping[str, object]) -> float:
    """Returns the base of rotary positions.

    Raises:
      WeightsError: nothing says that positions are rotary.
    """
    if any("/position_embedder/" in path for path in paths):
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer with absolute positions; {READABLE}."
        )
    if not checkpoint.flag("use_rotary_embedding"):
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer whose arrays have no positions, and no"
            " gin file beside it has use_rotary_embedding=True; put the gin file of the run into"
            " the folder that you pass. Fixed sinusoids are not read."
        )
    return float(checkpoint.number("rotary_embedding_max_timescale", 10000))


def _heads(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    table: tuple[int, ...] | None,
    query_width: int,
    key_width: int,
) -> tuple[int, int]:
    """Returns the number of heads, and that of key heads, which is the same or one."""
    heads = 0
    if table:
        heads = table[0]
    if key_width != query_width:
        heads = heads or query_width // key_width
    kernel = shapes[f"{FIRST}/self_attention/query/kernel"]
    if not heads and len(kernel) == 3:
        heads = kernel[1]
    heads = heads or checkpoint.number("num_heads", 0) or checkpoint.number("NUM_HEADS", 0)
    kv_heads = 1
    if key_width == query_width:
        kv_heads = heads
    if not heads or key_width * heads != query_width * kv_heads:
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer with queries of {query_width} features,"
            f" keys of {key_width} and {heads or 'an unknown number of'} heads; put the gin file of"
            " the run (NUM_HEADS=...) into the folder that you pass."
        )
    return heads, kv_heads


def _by_layer(checkpoint: Checkpoint) -> dict[str, Readable]:
    """Returns the parameters of each layer by path, with fused kernels split."""
    if NORM in checkpoint.arrays:  # a Decoder without DecoderOnly around it
        named = {f"decoder/{path}": array for path, array in checkpoint.arrays.items()}
        checkpoint = checkpoint._replace(arrays=named)
    if "token_embedder/embedding" in checkpoint.arrays and TABLE not in checkpoint.arrays:
        arrays = dict(checkpoint.arrays)
        arrays[TABLE] = arrays.pop("token_embedder/embedding")
        checkpoint = checkpoint._replace(arrays=arrays)
    single = by_layer(checkpoint)
    taken: dict[str, Readable] = {}
    for path, array in single.items():
        match = re.fullmatch(r"(decoder/layers_\d+)/(q_wi_fused|kv_fused|o_wo_fused)/kernel", path)
        if not match:
            taken[path] = array
            continue
        keys = single.get(f"{match[1]}/kv_fused/kernel")
        ends = single.get(f"{match[1]}/o_wo_fused/kernel")
        fused = (array, keys, ends)
        if keys is None or ends is None or any(one is None or len(one.shape) != 3 for one in fused):
            raise WeightsError(
                f"{checkpoint.place}: {quote_name(path)} of shape {quote_value(list(array.shape))}"
                " in a layer without kv_fused or o_wo_fused of three axes: not read."
            )
        width = keys.shape[-1] // 2
        hidden = ends.shape[1] - width
        for name, one in _parts(match[2], array, width, hidden):
            taken[f"{match[1]}/{name}/kernel"] = one
    return taken


def _parts(name: str, array: Readable, width: int, hidden: int) -> Iterator[tuple[str, Readable]]:
    """Yields the names and kernels that a fused kernel consists of.

    Args:
      name: q_wi_fused, [D, N, H + F/N] or [D, N, H + 2 F/N]; kv_fused, [D, 1, 2 H]; or o_wo_fused,
        [N, H + F/N, D].
      array: the fused kernel.
      width: H, the width of a head.
      hidden: F/N, the width of the feed-forward by the number of heads.
    """
    if name == "kv_fused":
        yield "self_attention/key", array[:, :, :width]
        yield "self_attention/value", array[:, :, width:]
    elif name == "o_wo_fused":
        yield "self_attention/out", array[:, :width]
        yield "mlp/wo", array[:, width:]
    else:
        yield "self_attention/query", array[:, :, :width]
        if array.shape[2] <= width + hidden:
            yield "mlp/wi", array[:, :, width:]
        else:
            yield "mlp/wi_0", array[:, :, width : width + hidden]
            yield "mlp/wi_1", array[:, :, width + hidden :]
