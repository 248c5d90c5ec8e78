"""Reads Llama, Mistral, Gemma and Gemma 2 from MaxText's checkpoints in Orbax, scanned or not.

The shapes of the arrays give the sizes. The rest, such as rotary positions and epsilon, is read
from a .yml of MaxText in the folder, such as configs/models/llama3.1-8b.yml; fields that it leaves
out have the values of MaxText's base.yml. A config.json of transformers for the same model may
take the place of the .yml.

Differences to the published weights:

* MaxText divides the kernel of queries, and not the logits, by the root of a head's width.
* With the positions of Llama 3.1, the features of queries and keys are interleaved.
* The scales of Gemma's norms include the 1 that transformers adds.
* Gemma's token table is multiplied by the root of the width, and may have rows of padding.
* Two layers of Gemma 2, a local and a global one, are stored as one.

Reference: src/maxtext/checkpoint_conversion/utils/param_mapping.py, the functions LLAMA31_... and
GEMMA2_..., standalone_scripts/convert_gemma_chkpt.py, models/gemma{,2}.py and configs/base.yml of
August 2026. MaxText itself was not run.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from flaxformer_lite.files.read import Json, brief, read_object, shown
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Computed, Readable, add
from flaxformer_lite.pretrained.foreign.orbax_arrays import METADATA, open_array, tree_paths
from flaxformer_lite.pretrained.foreign.yaml_files import read_number, read_yaml
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError

FORM = "MaxText checkpoint"
PARAMS = ("params", "params")
EMBEDDING = "token_embedder.embedding"
LOGITS = "decoder.logits_dense.kernel"
ENDS = {
    EMBEDDING: ("model.embed_tokens.weight", "as_is"),
    LOGITS: ("lm_head.weight", "in"),
    "decoder.decoder_norm.scale": ("model.norm.weight", "as_is"),
}
LAYER = {
    "pre_self_attention_layer_norm.scale": ("input_layernorm.weight", "as_is"),
    "post_self_attention_layer_norm.scale": ("post_attention_layernorm.weight", "as_is"),
    "self_attention.query.kernel": ("self_attn.q_proj.weight", "in"),
    "self_attention.key.kernel": ("self_attn.k_proj.weight", "in"),
    "self_attention.value.kernel": ("self_attn.v_proj.weight", "in"),
    "self_attention.out.kernel": ("self_attn.o_proj.weight", "out"),
    "mlp.wi_0.kernel": ("mlp.gate_proj.weight", "in"),
    "mlp.wi_1.kernel": ("mlp.up_proj.weight", "in"),
    "mlp.wo.kernel": ("mlp.down_proj.weight", "in"),
}
GEMMA_LAYER = {
    **{name: row for name, row in LAYER.items() if "norm" not in name},
    "pre_self_attention_norm.scale": ("input_layernorm.weight", "as_is"),
    "pre_ffw_norm.scale": ("post_attention_layernorm.weight", "as_is"),
}
GEMMA2_LAYER = GEMMA_LAYER | {
    "post_self_attention_norm.scale": ("post_attention_layernorm.weight", "as_is"),
    "pre_ffw_norm.scale": ("pre_feedforward_layernorm.weight", "as_is"),
    "post_ffw_norm.scale": ("post_feedforward_layernorm.weight", "as_is"),
}
LAYERS = {"gemma": GEMMA_LAYER, "gemma2": GEMMA2_LAYER}
IN_LAYER = re.compile(r"decoder\.layers(?:_(\d+))?\.(\w+?)(_local|_global)?\.(.+)")
NORM = re.compile(r"decoder\.layers\.pre_self_attention_(layer_)?norm(_local)?\.scale")
QUERY = "self_attention.query.kernel"
KEY = "self_attention.key.kernel"
UP = "mlp.wi_0.kernel"
RANKS = {"as_is": (1, 2), "in": (2, 3), "out": (3, 3)}
BASE = {  # from MaxText's base.yml; other values are refused, except for the fields of READ
    "decoder_block": "llama2",
    "rope_type": "default",
    "rope_max_timescale": 10_000,
    "normalization_layer_epsilon": 1e-5,
    "rope_min_timescale": 1,
    "rope_linear_scaling_factor": 1.0,
    "rope_use_scale": True,
    "mlp_activations": ["silu", "linear"],
    "attention_type": "global",
    "attention_bias": False,
    "mlp_bias": False,
    "use_qk_norm": False,
    "local_rope_max_timescale": -1,
    "partial_rotary_factor": 1.0,
    "nope_layer_interval": -1,
    "temperature_tuning": False,
    "use_mrope": False,
    "attention_sink": False,
    "share_kv_projections": False,
    "moba": False,
    "mlp_activations_limit": -1.0,
    "mhc_expansion_rate": 1,
    "engram_layers": [],
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "quantization": "",
}
READ = ("decoder_block", "rope_type", "rope_max_timescale", "normalization_layer_epsilon")
GEMMA = {"mlp_activations": ["gelu", "linear"]}  # the fields that differ from BASE for Gemma
GEMMA2_SCALAR = 256  # the default of query_pre_attn_scalar in transformers
CAPS = ("attn_logits_soft_cap", "final_logits_soft_cap")
LLAMA31 = {  # LLaMARotaryEmbedding
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LENGTH = 8192  # max_position_embeddings; nothing that the model computes depends on it


def find(folder: Path) -> Path | None:
    """Finds the `items` of a step: in this folder, or in the newest step of a run."""
    if not folder.is_dir():
        return None
    for place in (folder, folder / "items", *_steps(folder), *_steps(folder / "checkpoints")):
        if (place / METADATA).is_file() and EMBEDDING in _names(place):
            return place
    return None


def _steps(folder: Path) -> list[Path]:
    """Lists the `items` folders of the steps in a folder, the newest first."""
    if not folder.is_dir():
        return []
    steps = [child for child in folder.iterdir() if child.name.isdecimal()]
    return [step / "items" for step in sorted(steps, key=lambda step: -int(step.name))]


def describe(place: Path) -> list[str]:
    """Describes a checkpoint in one line, and what was assumed or left out in further ones."""
    arrays = _open(place)
    config = read_config(place)
    sizes = _sizes(place, arrays)
    values, source = _settings(place)
    scanned = ""
    if _scan_axis(arrays) is not None:
        scanned = " in a scanned stack"
    lines = [
        f"{place}: a checkpoint of MaxText: {config['model_type']} with"
        f" {sizes['num_hidden_layers']} layers{scanned}, width {sizes['hidden_size']},"
        f" {sizes['num_attention_heads']} heads of {sizes['head_dim']}"
        f" ({sizes['num_key_value_heads']} for keys and values), feed-forward"
        f" {sizes['intermediate_size']}, vocabulary {sizes['vocab_size']:,}"
    ]
    if source and not _published(place):
        told = set(values)
        if "rope_scaling" in config:  # by the name of the model
            lines[0] += ", the positions of Llama 3.1"
            told.add("rope_type")
        assumed = [f"{name}={brief(BASE[name])}" for name in READ if name not in told]
        assumed.append(f"texts of up to {LENGTH:,} tokens")
        lines.append(f"assumed, as {source.name} does not say: {', '.join(assumed)}")
    if _published(place) and LOGITS not in arrays and _kind(arrays) not in LAYERS:
        lines.append("assumed: normalize_embedding_logits=False, as its logits are tied")
    rows = sizes["vocab_size"]
    kept = config.get("vocab_size", rows)
    if rows > kept:
        lines.append(f"left out: the rows of its table after {kept:,} of {rows:,}")
    if place.parent.name.isdecimal():
        for step in _steps(place.parent.parent):
            is_newer = int(step.parent.name) > int(place.parent.name)
            if is_newer and not (step / METADATA).is_file():
                lines.append(f"{step.parent} is newer, but no whole checkpoint: not read")
    lines.append("it has no tokenizer: copy the files of the model's into the new folder")
    return lines


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Raises:
      WeightsError: the checkpoint is damaged or of another kind of model, or there is no .yml.
    """
    if published := _published(place):
        return published
    arrays = _open(place)
    sizes = _sizes(place, arrays)
    config = _config_of_yml(place, _kind(arrays), tied=LOGITS not in arrays)
    if config["model_type"] == "gemma2":
        config["query_pre_attn_scalar"] = sizes["head_dim"]
    return sizes | config


def _sizes(place: Path, arrays: Mapping[str, Readable]) -> Json:
    """Returns the sizes, by the shapes of the arrays.

    Raises:
      WeightsError: the decoder is of another kind.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    layers = 0
    for path, array in arrays.items():
        for number, name, index in _by_layer(place, arrays, path):
            layers = max(layers, number + 1)
            shape = tuple(array.shape)
            if index:
                axis = len(index) - 1  # that of the layers
                shape = (*shape[:axis], *shape[axis + 1 :])
            shapes[name] = shape
    for name, rank in ((QUERY, 3), (KEY, 3), (UP, 2)):
        if len(shapes.get(name, ())) != rank:
            raise WeightsError(
                f"{place}: a checkpoint of MaxText whose {name} is"
                f" {brief(shapes.get(name, 'missing'))}; decoders of Llama's, Mistral's and Gemma's"
                " kind are read. Its to_huggingface.py writes others for transformers."
            )
    vocab_size, d_model = arrays[EMBEDDING].shape
    return {
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "num_hidden_layers": layers,
        "num_attention_heads": shapes[QUERY][1],
        "num_key_value_heads": shapes[KEY][1],
        "head_dim": shapes[QUERY][2],
        "intermediate_size": shapes[UP][1],
        "hidden_act": "silu",
        "tie_word_embeddings": LOGITS not in arrays,
        "max_position_embeddings": LENGTH,
    }


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Raises:
      WeightsError: the checkpoint is damaged, or holds a parameter that the model does not have.
    """
    arrays = _open(place)
    kind = _kind(arrays)
    rows = LAYERS.get(kind, LAYER)
    width = _sizes(place, arrays)["head_dim"]
    if (kind in LAYERS or "gemma" in str(config.get("model_type"))) and (
        config.get("model_type") != kind
    ):
        raise WeightsError(
            f"{place}: its layers are those of {kind}, where config.json has"
            f" model_type={brief(config.get('model_type'))}."
        )
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        where = f"{place}: {path}"
        if path == EMBEDDING and len(array.shape) == 2:
            array = array[: config.get("vocab_size")]
        if path in ENDS and len(array.shape) in RANKS[ENDS[path][1]]:
            name, layout = ENDS[path]
            alone = Arranged(array, _groups(layout, len(array.shape)), (), where)
            tensors[name] = _as_published(alone, path, config, width)
            continue
        layers = list(_by_layer(place, arrays, path))
        for number, inner, index in layers:
            rank = len(array.shape) - bool(index)
            row = rows.get(inner)
            if row is None or rank not in RANKS[row[1]]:
                layers = []
                break
            tensor = Arranged(array, _groups(row[1], rank), index, where)
            full = f"model.layers.{number}.{row[0]}"
            add(tensors, full, _as_published(tensor, inner, config, width), where)
        if not layers:
            raise WeightsError(
                f"{place}: holds {shown(path)} of shape {brief(list(array.shape))}, which no"
                f" decoder of {kind.capitalize()}'s kind in MaxText has; adapters and quantized"
                " weights are not read."
            )
    return tensors


def _kind(arrays: Mapping[str, Readable]) -> str:
    """Returns "llama" (Mistral too), "gemma" or "gemma2", by the names of parameters."""
    kind = "llama"
    for path in arrays:
        match = IN_LAYER.fullmatch(path)
        if match and match[3]:
            return "gemma2"
        if match and match[2] == "pre_ffw_norm":
            kind = "gemma"
    return kind


def _by_layer(
    place: Path, arrays: Mapping[str, Readable], path: str
) -> Iterator[tuple[int, str, tuple[int | slice, ...]]]:
    """Yields the number of a layer, the name of a parameter in it, and its index in the array.

    A layer of Gemma 2 in MaxText is two of transformers, the local one first.
    """
    match = IN_LAYER.fullmatch(path)
    if not match:
        return
    number, module, half, leaf = match.groups()
    name = f"{module}.{leaf}"
    step = 1
    offset = 0
    if half:
        step = 2
        offset = int(half == "_global")
    if number is not None:
        yield step * int(number) + offset, name, ()
        return
    axis = _scan_axis(arrays)
    count = _scanned_layers(arrays)
    shape = arrays[path].shape
    if axis is None or len(shape) <= axis or shape[axis] != count:
        raise WeightsError(
            f"{place}: {shown(path)} has the shape {brief(list(shape))}, without the {count} layers"
            f" of its scanned stack on axis {axis}."
        )
    for layer in range(count):
        yield step * layer + offset, name, (*[slice(None)] * axis, layer)


def _groups(layout: str, rank: int) -> tuple[tuple[int, ...], ...]:
    axes = tuple(range(rank))
    if layout == "in":  # [D, N, H] -> [N H, D]
        return (axes[1:], axes[:1])
    if layout == "out":  # [N, H, D] -> [D, N H]
        return (axes[-1:], axes[:-1])
    return tuple((axis,) for axis in axes)


def _as_published(tensor: Tensor, name: str, config: Json, width: int) -> Tensor:
    """Converts a parameter to the published weights; the module lists the differences.

    Args:
      tensor: the parameter.
      name: its name in a layer, or outside of the layers.
      config: the config of transformers, without fields that have their default value.
      width: the width of a head.
    """
    default = width
    if config.get("model_type") == "gemma2":
        default = GEMMA2_SCALAR
    scalar: float = config.get("query_pre_attn_scalar", default)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    interleaved = rope.get("rope_type", rope.get("type")) == "llama3" and name in (QUERY, KEY)
    is_gemma = str(config.get("model_type")).startswith("gemma")
    scale = 1.0
    if name == QUERY:
        scale = float(scalar) ** 0.5
    elif name == EMBEDDING and is_gemma:
        scale = float(tensor.shape[1]) ** -0.5
    less = 0.0
    if is_gemma and name.endswith(".scale"):
        less = 1.0

    def published(x: np.ndarray) -> np.ndarray:
        if interleaved:
            pairs = x.reshape(-1, width // 2, 2, x.shape[-1])
            x = pairs.transpose(0, 2, 1, 3).reshape(x.shape)
        if scale != 1 or less:
            return (x.astype(np.float32) * np.float32(scale) - np.float32(less)).astype(x.dtype)
        return x

    if scale == 1 and not less and not interleaved:
        return tensor
    return Computed(tensor, published)


def _config_of_yml(place: Path, kind: str, *, tied: bool) -> Json:
    values, source = _settings(place)
    if source is None:
        raise WeightsError(
            f"{place}: a checkpoint of MaxText, which does not hold its rotary positions; put the"
            " .yml of its model (configs/models of MaxText), or the config.json that transformers"
            " has for the model, into the folder that you pass."
        )
    told: Json = BASE | values
    block = told["decoder_block"]
    expected: tuple[str, ...] = (kind,)
    if kind == "llama":
        expected = ("llama2", "mistral")
    if block not in expected:
        raise WeightsError(
            f"{source}: decoder_block={brief(block)}: llama2 (Llama 2 and 3), mistral, gemma and"
            f" gemma2 are read, and its arrays are those of {' or '.join(expected)}."
        )
    known = dict(BASE)
    if kind in LAYERS:
        known |= GEMMA
    for name, only in known.items():
        if name in READ or (name in CAPS and kind == "gemma2"):
            continue
        if told[name] != only:
            raise WeightsError(f"{source}: {name}={brief(told[name])}: only {only!r} is read.")
    if bool(told.get("logits_via_embedding", False)) != tied:
        raise WeightsError(
            f"{source}: logits_via_embedding={not tied}, where its checkpoint is"
            f" {'without' if tied else 'with'} {LOGITS}."
        )
    normalized = told.get("normalize_embedding_logits", True)
    if kind in LAYERS and not (tied and normalized):
        raise WeightsError(
            f"{source}: Gemma with normalize_embedding_logits={brief(normalized)} and"
            f" {'tied' if tied else 'untied'} logits, where tied logits are read that are divided"
            " by the square root of the width."
        )
    if kind not in LAYERS and tied and normalized:
        raise WeightsError(
            f"{source}: normalize_embedding_logits=True with tied logits, which divides them by the"
            " square root of the width: not read."
        )
    is_llama31 = str(told.get("model_name", "")).startswith("llama3.1")
    is_llama31 = is_llama31 or str(told["rope_type"]).startswith("llama3.1")
    if not is_llama31 and told["rope_type"] != "default":
        raise WeightsError(f"{source}: rope_type={brief(told['rope_type'])}: is not read.")
    names = {"llama2": "llama"}
    model_type = names.get(str(block), str(block))
    config: Json = {
        "model_type": model_type,
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "rms_norm_eps": read_number(source, told, "normalization_layer_epsilon"),
        "rope_theta": read_number(source, told, "rope_max_timescale"),
    }
    if block == "mistral":
        config["sliding_window"] = None
    if kind in LAYERS:
        config |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if kind == "gemma2":
        config["sliding_window"] = int(read_number(source, told, "sliding_window_size"))
        config["attn_logit_softcapping"] = read_number(source, told, "attn_logits_soft_cap") or None
        config["final_logit_softcapping"] = (
            read_number(source, told, "final_logits_soft_cap") or None
        )
    if is_llama31:
        config["rope_scaling"] = LLAMA31
    return config


def _beside(place: Path) -> list[Path]:
    """Returns the folders that may have a config: `items`, its step, the steps and the run."""
    here = place.absolute()
    return [here, *here.parents[:3]]


def _published(place: Path) -> Json:
    """Returns the config.json of transformers beside the checkpoint; {} if there is none."""
    for folder in _beside(place):
        path = folder / "config.json"
        if path.is_file() and "model_type" in (config := read_object(path, error=WeightsError)):
            return config
    return {}


def _settings(place: Path) -> tuple[Json, Path | None]:
    """Reads the .yml beside the checkpoint."""
    for folder in _beside(place):
        for path in sorted(folder.glob("*.yml")):
            values = read_yaml(path)
            if {"decoder_block", "rope_max_timescale", "base_emb_dim"} & set(values):
                return {"model_name": path.stem} | values, path
    return {}, None


def _scan_axis(arrays: Mapping[str, Readable]) -> int | None:
    """Returns the axis of layers in a scanned stack, or None if it is not scanned.

    It follows from the scale of a norm, which has an axis of layers and one of features.
    """
    norm = _scanned_norm(arrays)
    if norm is None or len(norm.shape) != 2:
        return None
    width = arrays[EMBEDDING].shape[1]
    if norm.shape[1] == width and norm.shape[0] != width:
        return 0
    return 1


def _scanned_layers(arrays: Mapping[str, Readable]) -> int:
    norm = _scanned_norm(arrays)
    axis = _scan_axis(arrays)
    if norm is None or axis is None:
        return 0
    return norm.shape[axis]


def _scanned_norm(arrays: Mapping[str, Readable]) -> Readable | None:
    for path, array in arrays.items():
        if NORM.fullmatch(path):
            return array
    return None


def _names(place: Path) -> list[str]:
    """Lists the parameters of a checkpoint, without the optimizer's state."""
    return [".".join(path[2:]) for path in tree_paths(place) if path[:2] == PARAMS]


def _open(place: Path) -> dict[str, Readable]:
    """Opens the parameters by their paths; they are read later.

    Raises:
      WeightsError: the checkpoint is damaged, or has other collections of parameters.
    """
    arrays: dict[str, Readable] = {}
    for path in tree_paths(place):
        if path[:2] == PARAMS:
            arrays[".".join(path[2:])] = open_array(place, path)
        elif path[:1] == PARAMS[:1]:
            raise WeightsError(
                f"{place}: holds {shown('.'.join(path))} beside its parameters; quantized weights"
                " and adapters are not read."
            )
    if len(arrays[EMBEDDING].shape) != 2:
        raise WeightsError(f"{place}: {EMBEDDING} is {brief(list(arrays[EMBEDDING].shape))}.")
    return arrays
