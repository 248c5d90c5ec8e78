"""flaxformer's decoders alone in checkpoints of T5X, in sequence or in parallel with fused kernels.

With rotary positions and a gated feed-forward in sequence they are read as Granite, which has all
that they compute; others as `t5_decoder`, which transformers does not have.

Reference: flaxformer/architectures/t5/{t5_architecture,parallel_fused_decoder}.py of April 2024.
"""

import math
import re
from collections.abc import Iterator, Mapping

from flaxformer_lite.files.read import Json, brief, shown
from flaxformer_lite.pretrained.foreign.arranged import Readable, add
from flaxformer_lite.pretrained.foreign.t5x_layers import (
    Checkpoint,
    activation,
    as_torch,
    by_layer,
    is_scanned,
)
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

NORM = "decoder_norm/scale"
TABLE = "decoder/token_embedder/embedding"
LOGITS = "decoder/logits_dense/kernel"
POSITIONS = "decoder/relpos_bias/rel_embedding"
LAYER = re.compile(r"decoder/layers_(\d+)/(.+)")
FIRST = "decoder/layers_0"
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
LENGTH = 2048  # of texts; no number depends on it
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
    tied = " (tied)" if config["tie_word_embeddings"] else ""
    rotary = "rope_theta" in config or "rope_parameters" in config
    layers = config.get("num_layers", config.get("num_hidden_layers"))
    width = config.get("d_model", config.get("hidden_size"))
    heads = config.get("num_heads", config.get("num_attention_heads"))
    lines = [
        f"a decoder of flaxformer with {layers} layers"
        f"{' in a scanned stack' if is_scanned(checkpoint.arrays) else ''}"
        f"{', attention and feed-forward in parallel' if _is_parallel(arrays) else ''}, width"
        f" {width}, {heads} heads, {config['num_key_value_heads']} of keys and values,"
        f" {'rotary' if rotary else 'relative'} positions, vocabulary {config['vocab_size']:,}"
        f"{tied}; read as {config['architectures'][0]}"
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
      WeightsError: the decoder is of another kind, or nothing tells its positions or heads.
    """
    arrays = _by_layer(checkpoint)
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    checkpoint.refuse("center_scale_at_zero", "use_extra_logit")
    gated = f"{FIRST}/mlp/wi_0/kernel" in shapes
    up = f"{FIRST}/mlp/{'wi_0' if gated else 'wi'}/kernel"
    query = f"{FIRST}/self_attention/query/kernel"
    key = f"{FIRST}/self_attention/key/kernel"
    for needed in (TABLE, up, query, key):
        rank = len(shapes.get(needed, ()))
        if rank < 2 or (needed == TABLE and rank > 2):
            raise WeightsError(
                f"{checkpoint.place}: a decoder of flaxformer whose {needed} is"
                f" {brief(shapes.get(needed, 'missing'))}; {READABLE}."
            )
    vocab_size, d_model = shapes[TABLE]
    per_layer = f"{FIRST}/relpos_bias/rel_embedding" in shapes
    table = shapes.get(f"{FIRST}/relpos_bias/rel_embedding" if per_layer else POSITIONS)
    query_width = math.prod(shapes[query][1:])
    key_width = math.prod(shapes[key][1:])
    if table and checkpoint.flag("use_rotary_embedding"):
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer with relative positions and"
            " use_rotary_embedding=True; one of both is read."
        )
    rotary: Json = {} if table else {"rope_theta": _rotary(checkpoint, shapes)}
    heads, kv_heads = _heads(checkpoint, shapes, table, query_width, key_width)
    tied = LOGITS not in shapes
    projection = activation(checkpoint, gated)
    numbers = [int(match[1]) + 1 for path in shapes if (match := LAYER.fullmatch(path))]
    if table is None and gated and not _is_parallel(arrays):
        names = {"gelu": "gelu_pytorch_tanh"}
        name = projection.removeprefix("gated-")
        return {
            "model_type": "granite",
            "architectures": ["GraniteForCausalLM"],
            "vocab_size": vocab_size,
            "hidden_size": d_model,
            "intermediate_size": math.prod(shapes[up][1:]),
            "num_hidden_layers": max(numbers),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": query_width // heads,
            "hidden_act": names.get(name, name),
            "max_position_embeddings": LENGTH,
            "rms_norm_eps": 1e-6,
            **rotary,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": d_model**0.5 if tied else 1.0,
            "tie_word_embeddings": tied,
            "pad_token_id": 0,
            "eos_token_id": 1,
        }
    config: Json = {
        "model_type": "t5_decoder",
        "architectures": ["T5DecoderForCausalLM"],
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": query_width // heads,
        "d_ff": math.prod(shapes[up][1:]),
        "num_layers": max(numbers),
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "feed_forward_proj": projection,
        "parallel": _is_parallel(arrays),
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "is_encoder_decoder": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    if table is None:
        return config | rotary
    return config | {
        "relative_attention_num_buckets": table[1],
        "relative_attention_max_distance": checkpoint.number("max_distance", 128),
        "relative_attention_per_layer": per_layer,
    }


def open_weights(checkpoint: Checkpoint, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names of their class.

    Raises:
      WeightsError: the checkpoint holds a parameter that the class does not have.
    """
    arrays = _by_layer(checkpoint)
    granite = config.get("model_type") == "granite"
    names = GRANITE_NAMES if granite else T5_NAMES
    above = "model.layers" if granite else "decoder.block"
    heads = config["num_attention_heads" if granite else "num_heads"]
    rescaled = _is_rescaled(checkpoint)
    branch = 1.0  # two parallel branches are divided by the root of 2, if they are not fused
    if _is_parallel(arrays) and not _is_fused(checkpoint):
        branch = 2**-0.5
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        match = LAYER.fullmatch(path)
        name = names.get(match[2]) if match else names.get(path)
        if name is None:
            raise WeightsError(
                f"{checkpoint.place}: holds {shown(path)} of shape {brief(list(array.shape))};"
                f" {READABLE}."
            )
        scale = 1.0
        if path.endswith(("/out/kernel", "/wo/kernel")):
            scale = branch
        elif path.endswith("/query/kernel") and rescaled:
            scale = (math.prod(array.shape[1:]) // heads) ** -0.5
        full = f"{above}.{match[1]}.{name}" if match else name
        tensor = as_torch(checkpoint, path, array, scale=scale)
        add(tensors, full, tensor, f"{checkpoint.place}: {path}")
    return tensors


def _is_parallel(arrays: Mapping[str, object]) -> bool:
    return f"{FIRST}/layer_norm/scale" in arrays


def _is_fused(checkpoint: Checkpoint) -> bool:
    """Returns whether queries are fused with the feed-forward, or with keys and values."""
    fused = re.compile(r"(^|.*/)(q_wi_fused|qkv_fused|kv_fused)/kernel")
    return any(fused.fullmatch(path) for path in checkpoint.arrays)


def _is_rescaled(checkpoint: Checkpoint) -> bool:
    """Returns whether logits are divided by a root, instead of the initial kernel of queries.

    Fused kernels have no initializer of their own to divide.
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
    """Returns the numbers of heads, and of those of keys and values: as many, or one."""
    heads = table[0] if table else 0
    if key_width != query_width:
        heads = heads or query_width // key_width
    kernel = shapes[f"{FIRST}/self_attention/query/kernel"]
    if not heads and len(kernel) == 3:
        heads = kernel[1]
    heads = heads or checkpoint.number("num_heads", 0) or checkpoint.number("NUM_HEADS", 0)
    kv_heads = heads if key_width == query_width else 1
    if not heads or key_width * heads != query_width * kv_heads:
        raise WeightsError(
            f"{checkpoint.place}: a decoder of flaxformer with queries of {query_width} features,"
            f" keys of {key_width} and {heads or 'an unknown number of'} heads; put the gin file of"
            " the run (NUM_HEADS=...) into the folder that you pass."
        )
    return heads, kv_heads


def _by_layer(checkpoint: Checkpoint) -> dict[str, Readable]:
    """Returns the parameters by layers, with those of parallel layers taken apart."""
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
                f"{checkpoint.place}: {shown(path)} of shape {brief(list(array.shape))} in a layer"
                " without kv_fused or o_wo_fused of three axes: not read."
            )
        width = keys.shape[-1] // 2
        hidden = ends.shape[1] - width
        for name, one in _parts(match[2], array, width, hidden):
            taken[f"{match[1]}/{name}/kernel"] = one
    return taken


def _parts(name: str, array: Readable, width: int, hidden: int) -> Iterator[tuple[str, Readable]]:
    """Yields the kernels that a parallel layer fuses.

    Args:
      name: of the fused kernel: [D, N, H + F/N ...], [D, 1, 2 H] or [N, H + F/N, D].
      array: the fused kernel.
      width: H, of a head.
      hidden: F/N, of the feed-forward for each head.
    """
    if name == "kv_fused":
        yield "self_attention/key", array[:, :, :width]
        yield "self_attention/value", array[:, :, width:]
    elif name == "o_wo_fused":
        yield "self_attention/out", array[:, :width]
        yield "mlp/wo", array[:, width:]
    else:
        yield "self_attention/query", array[:, :, :width]
        names = ("wi_0", "wi_1") if array.shape[2] > width + hidden else ("wi",)
        for i, one in enumerate(names):
            first = width + i * hidden
            last = array.shape[2] if one == names[-1] else first + hidden
            yield f"mlp/{one}", array[:, :, first:last]
