"""Encoder-decoders and encoders of T5's kind in checkpoints of T5X, with experts or without.

flaxformer's architectures and T5X's own modules (examples/t5, examples/scalable_t5) have the same
names. The arrays tell the sizes.

Reference: flaxformer/architectures/{t5,longt5,moe} of April 2024; t5x/examples.
"""

import re
from collections.abc import Mapping

import numpy as np

from flaxformer_lite.contrib.t5x.arranged_tensors import Readable, add_tensor
from flaxformer_lite.contrib.t5x.layers import (
    Checkpoint,
    as_torch,
    by_layer,
    is_scanned,
    read_activation,
)
from flaxformer_lite.files.read import Json, quote_name, quote_value
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

READABLE = (
    "encoder-decoders and encoders of the T5 kind are read (T5, mT5, ByT5, Flan, UMT5, LongT5,"
    " Switch)"
)
SIDES = ("encoder", "decoder")
ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
MT5_VOCABULARY = 250112  # tells mT5 from T5 1.1, as both have the same names
LOCAL = "LocalSelfAttention"
GLOBAL = "TransientGlobalSelfAttention"
EXPERT_CAPACITY = 64  # tokens of a row that an expert takes, in the published Switch models
TABLE = "token_embedder/embedding"
LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(.+)")
EXPERTS = "mlp/expert/"
UNREAD = {  # parts of flaxformer's modules that no model of transformers has
    r".*/position_embedder/.*": "absolute positions",
    r".*/layers_\d+/layer_norm/scale": "attention and feed-forward in parallel",
    r".*/(pre_)?extra_mlp.*": "ST-MoE's second feed-forward",
    r".*/mlp/expert/wi_0/.*": "experts with a gated feed-forward",
    r".*/(wi|wi_0|wi_1|wo|query|key|value|out)/bias": "biases",
}


def describe(checkpoint: Checkpoint, config: Json) -> list[str]:
    """Describes the model, and what was assumed."""
    layers = f"{config['num_layers']} + {config['num_decoder_layers']} layers"
    if not config["is_encoder_decoder"]:
        layers = f"{config['num_layers']} encoder layers"
    if is_scanned(checkpoint.arrays):
        layers += " in scanned stacks"
    feed_forward = f"feed-forward {config['d_ff']} ({config['feed_forward_proj']})"
    if "num_experts" in config:
        feed_forward += f", {config['num_experts']} experts"
    vocabulary = f"vocabulary {config['vocab_size']:,}"
    if config["tie_word_embeddings"]:
        vocabulary += " (tied)"
    lines = [
        f"{config['model_type']} with {layers}, width {config['d_model']}, {config['num_heads']}"
        f" heads of {config['d_kv']}, {feed_forward}, {vocabulary}"
    ]
    assumed = []
    if not checkpoint.gin:
        names = ("feed_forward_proj", "relative_attention_max_distance", "local_radius")
        assumed = [f"{name}={config[name]!r}" for name in names if name in config]
    if assumed:
        lines.append(f"assumed, as there is no gin file: {', '.join(assumed)}")
    if "num_experts" in config:
        lines.append(
            f"assumed: each token goes to one expert, which takes {EXPERT_CAPACITY} tokens of a row"
            " (expert_capacity of config.json); T5X has room by a factor, for groups of many rows"
        )
    return lines


def read_config(checkpoint: Checkpoint) -> Json:
    """Derives transformers' config.json: sizes from shapes, the rest from the gin file.

    Raises:
      WeightsError: the model is not of T5's kind, or has parts that transformers' classes lack.
    """
    arrays = _by_layer(checkpoint)
    shapes = {path: tuple(array.shape) for path, array in arrays.items()}
    _check_parts(checkpoint, shapes)
    layers = {side: _layers(shapes, side) for side in SIDES}
    if max(layers.values()) > len(shapes):  # before anything is made for each
        raise WeightsError(f"{checkpoint.place}: a checkpoint of T5X without most of its layers.")
    first = "encoder/layers_0"
    table = f"{first}/relpos_bias/rel_embedding"
    per_layer = table in shapes
    if not per_layer:
        table = "encoder/relpos_bias/rel_embedding"
    query = f"{first}/attention/query/kernel"
    gated = any(path.endswith("/mlp/wi_0/kernel") for path in shapes)
    up = f"{first}/mlp/expert/wi/kernel"
    if up not in shapes:
        up = f"{first}/mlp/wi/kernel"
        if gated:
            up = f"{first}/mlp/wi_0/kernel"
    for needed in (TABLE, table, query, up):
        rank = len(shapes.get(needed, ()))
        if rank < 2 or (needed in (TABLE, table) and rank > 2):
            raise WeightsError(
                f"{checkpoint.place}: a checkpoint of T5X whose {needed} is"
                f" {quote_value(shapes.get(needed, 'missing'))}; {READABLE}."
            )
    vocab_size, d_model = shapes[TABLE]
    heads, buckets = shapes[table]
    has_sums = "encoder/side_relpos_bias/rel_embedding" in shapes
    untied = "decoder/logits_dense/kernel" in shapes
    decodes = layers["decoder"] > 0
    decoder_layers = layers["decoder"] or layers["encoder"]  # as transformers' T5 encoders say it
    config: Json = {
        "model_type": "t5",
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": int(np.prod(shapes[query][1:])) // heads,
        "d_ff": shapes[up][-1],
        "num_layers": layers["encoder"],
        "num_decoder_layers": decoder_layers,
        "num_heads": heads,
        "feed_forward_proj": read_activation(checkpoint, gated),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": checkpoint.number("max_distance", 128),
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "tie_word_embeddings": decodes and not untied,
        "is_encoder_decoder": decodes,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    kind = "T5"
    if any(EXPERTS in path for path in shapes):
        kind = "SwitchTransformers"
        config |= _experts(checkpoint, shapes, layers, per_layer, gated)
        config["model_type"] = "switch_transformers"
    elif per_layer:
        kind = "UMT5"
    elif has_sums or "EncoderLocalSelfAttention" in checkpoint.gin:
        kind = "LongT5"
        config["encoder_attention_type"] = "local"
        if has_sums:
            config["encoder_attention_type"] = "transient-global"
        config["local_radius"] = checkpoint.number("LOCAL_RADIUS", 127)
        config["global_block_size"] = checkpoint.number("TOKENS_PER_BLOCK", 16)
    elif vocab_size == MT5_VOCABULARY and untied:
        kind = "MT5"
    if kind != "SwitchTransformers":
        config["model_type"] = kind.lower()
    task = "EncoderModel"
    if decodes:
        task = "ForConditionalGeneration"
    config["architectures"] = [f"{kind}{task}"]
    return config


def open_weights(checkpoint: Checkpoint, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Raises:
      WeightsError: the checkpoint holds a parameter that T5 does not have.
    """
    arrays = _by_layer(checkpoint)
    _check_parts(checkpoint, {path: tuple(array.shape) for path, array in arrays.items()})
    attention = "SelfAttention"
    feed_forward = "DenseReluDense"
    if config.get("model_type") == "switch_transformers":
        feed_forward = "mlp"
    elif config.get("model_type") == "longt5":
        attention = GLOBAL
        if config.get("encoder_attention_type", "local") == "local":
            attention = LOCAL
    rescaled = checkpoint.flag("rescale_logits")
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        for name, single in _by_expert(path, array):
            spelled = _published_name(name, attention, feed_forward)
            if spelled is None:
                raise WeightsError(
                    f"{checkpoint.place}: holds {quote_name(path)}, which no T5 has; {READABLE}."
                )
            scale = 1.0
            if path.endswith("/query/kernel") and (rescaled or _is_fused(checkpoint, path)):
                scale = config.get("d_kv", 64) ** -0.5  # 64 is the default of transformers' T5
            tensor = as_torch(checkpoint, name, single, scale=scale)
            add_tensor(tensors, spelled, tensor, f"{checkpoint.place}: {path}")
    return tensors


def _by_layer(checkpoint: Checkpoint) -> dict[str, Readable]:
    """Returns the parameters of each layer; an encoder alone gets the paths of both sides."""
    if "encoder_norm/scale" in checkpoint.arrays:
        named = {f"encoder/{path}": array for path, array in checkpoint.arrays.items()}
        checkpoint = checkpoint._replace(arrays=named)
    arrays = by_layer(checkpoint)
    table = f"encoder/{TABLE}"
    if table in arrays and TABLE not in arrays and not _layers(arrays, "decoder"):
        arrays[TABLE] = arrays.pop(table)
    return arrays


def _check_parts(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses models that have no class in transformers, and says why."""
    has_decoder = any(path.startswith("decoder/") for path in shapes)
    needed = [TABLE]
    if has_decoder:
        needed.append("decoder/decoder_norm/scale")
    where = f"{checkpoint.place}: a checkpoint of T5X"
    if "encoder/encoder_norm/scale" not in shapes:
        names = quote_value(sorted({path.split("/")[0] for path in shapes}))
        raise WeightsError(f"{where} whose parameters are {names}; {READABLE}.")
    for side in SIDES:
        if has_decoder and f"{side}/{TABLE}" in shapes:
            raise WeightsError(
                f"{where} with a table of tokens for each side, where the T5 of transformers has"
                " one for both: not read."
            )
    for path in shapes:
        for pattern, what in UNREAD.items():
            if re.fullmatch(pattern, path):
                raise WeightsError(
                    f"{where} with {what} ({quote_name(path)}), which no T5 of transformers has."
                )
    for path in needed:
        if path not in shapes:
            raise WeightsError(f"{where} without {path}; {READABLE}.")
    checkpoint.refuse("center_scale_at_zero", "use_extra_logit", "use_rotary_embedding")


def _layers(paths: Mapping[str, object], side: str) -> int:
    """Counts the layers of a side."""
    count = 0
    for path in paths:
        match = LAYER.fullmatch(path)
        if match and match[1] == side:
            count = max(count, int(match[2]) + 1)
    return count


def _experts(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    layers: Mapping[str, int],
    per_layer: bool,
    gated: bool,
) -> Json:
    """Returns the fields of a Switch model.

    Raises:
      WeightsError: it differs from the Switch of transformers.
    """
    where = f"{checkpoint.place}: a mixture of experts"
    if per_layer:
        raise WeightsError(
            f"{where} with relative positions in each layer, as flaxformer's scan.gin makes it,"
            " where the Switch of transformers has them in the first."
        )
    if gated:
        raise WeightsError(
            f"{where} with gated feed-forwards, which no Switch of transformers has."
        )
    chosen = checkpoint.number("num_selected_experts", checkpoint.number("NUM_SELECTED_EXPERTS", 1))
    if chosen != 1 or "ExpertsChoose" in checkpoint.gin:
        raise WeightsError(
            f"{where} whose gin file has num_selected_experts={chosen} or"
            " ExpertsChooseMaskedRouter: tokens that choose one expert are read."
        )
    counts = {shape[0] for path, shape in shapes.items() if EXPERTS in path}
    if len(counts) != 1:
        raise WeightsError(f"{where} with {sorted(counts)} experts: one number is read.")
    name = read_activation(checkpoint, False)
    config: Json = {
        "num_experts": counts.pop(),
        "expert_capacity": EXPERT_CAPACITY,
        "dense_act_fn": name,
        "router_bias": any(path.endswith("router_weights/w/bias") for path in shapes),
    }
    for side in SIDES:
        sparse = [f"{side}/layers_{i}/mlp/expert/wi/kernel" in shapes for i in range(layers[side])]
        steps = [step for step in range(len(sparse) + 1) if sparse == _pattern(len(sparse), step)]
        if not steps:
            places = [i for i, has_experts in enumerate(sparse) if has_experts]
            raise WeightsError(
                f"{where} with experts in the {side}'s layers {places}, where the Switch of"
                " transformers has them in layers 1, 1 + step, 1 + 2 step ..."
            )
        config[f"{side}_sparse_step"] = steps[0]
        config[f"num_sparse_{side}_layers"] = sum(sparse)
    return config


def _pattern(layers: int, step: int) -> list[bool]:
    """Returns which layers have experts in transformers, for a `sparse_step`."""
    return [step > 0 and (i % step == 1 or step == 1) for i in range(layers)]


def _is_fused(checkpoint: Checkpoint, path: str) -> bool:
    """Returns whether a query kernel is part of a fused one.

    flaxformer then divides the logits by the root of the head's width.
    """
    attention = path.split("/")[-3]  # its name differs between self-attention and cross-attention
    fused = re.compile(rf"(^|.*/){attention}/q?kv_fused/kernel")
    return any(fused.fullmatch(one) for one in checkpoint.arrays)


def _by_expert(path: str, array: Readable) -> list[tuple[str, Readable]]:
    above, experts, rest = path.partition(EXPERTS)
    if not experts:
        return [(path, array)]
    return [(f"{above}mlp/experts/{e}/{rest}", array[e]) for e in range(array.shape[0])]


def _published_name(path: str, attention: str, feed_forward: str) -> str | None:
    """Returns transformers' name of a parameter; None if T5 has no such parameter."""
    outside = {
        TABLE: "shared.weight",
        "decoder/logits_dense/kernel": "lm_head.weight",
        "encoder/encoder_norm/scale": "encoder.final_layer_norm.weight",
        "decoder/decoder_norm/scale": "decoder.final_layer_norm.weight",
        "encoder/relpos_bias/rel_embedding": (
            f"encoder.block.0.layer.0.{attention}.relative_attention_bias.weight"
        ),
        "decoder/relpos_bias/rel_embedding": (
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        "encoder/side_relpos_bias/rel_embedding": (
            f"encoder.block.0.layer.0.{attention}.global_relative_attention_bias.weight"
        ),
    }
    if path in outside:
        return outside[path]
    match = LAYER.fullmatch(path)
    if not match:
        return None
    side, layer, rest = match.groups()
    above = f"{side}.block.{layer}.layer"
    number = 1  # of the feed-forward among the sublayers
    names = _encoder_layer(attention)
    if side == "decoder":
        number = 2
        names = _decoder_layer()
    experts = f"{number}.mlp"
    if found := re.fullmatch(r"mlp/experts/(\d+)/(wi|wo)/kernel", rest):
        return f"{above}.{experts}.experts.expert_{found[1]}.{found[2]}.weight"
    if found := re.fullmatch(r"mlp/router/router_weights/w/(kernel|bias)", rest):
        return f"{above}.{experts}.router.classifier.{found[1].replace('kernel', 'weight')}"
    for matrix in ("wi", "wi_0", "wi_1", "wo"):
        names[f"mlp/{matrix}/kernel"] = f"{number}.{feed_forward}.{matrix}"
    names["pre_mlp_layer_norm/scale"] = f"{number}.layer_norm"
    if rest not in names:
        return None
    return f"{above}.{names[rest]}.weight"


def _encoder_layer(attention: str) -> dict[str, str]:
    return {
        "pre_attention_layer_norm/scale": "0.layer_norm",
        "relpos_bias/rel_embedding": f"0.{attention}.relative_attention_bias",
        "attention/T5LayerNorm_0/scale": f"0.{attention}.global_input_layer_norm",
        **_projections("attention", f"0.{attention}"),
    }


def _decoder_layer() -> dict[str, str]:
    return {
        "pre_self_attention_layer_norm/scale": "0.layer_norm",
        "pre_cross_attention_layer_norm/scale": "1.layer_norm",
        "relpos_bias/rel_embedding": "0.SelfAttention.relative_attention_bias",
        **_projections("self_attention", "0.SelfAttention"),
        **_projections("encoder_decoder_attention", "1.EncDecAttention"),
    }


def _projections(theirs: str, published: str) -> dict[str, str]:
    return {f"{theirs}/{one}/kernel": f"{published}.{q}" for one, q in ATTENTION.items()}
