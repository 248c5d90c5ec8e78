"""Checkpoints of MaxText: Llama's and Mistral's decoders in Orbax, scanned or not.

The arrays tell the sizes. What they do not (the rotary positions, epsilon) must be in a .yml of
MaxText in the folder, such as configs/models/llama3.1-8b.yml; fields that it leaves out are those
of MaxText's base.yml. Or a config.json of transformers is there for the same model.

MaxText divides the query's kernel by the square root of a head's width instead of the logits. Where
it uses the positions of Llama 3.1, the features of queries and keys are interleaved.

Reference: src/maxtext/checkpoint_conversion/utils/param_mapping.py, the functions LLAMA31_..., and
configs/base.yml of August 2026. MaxText itself was not run.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flaxformer_lite.files.read import Json, brief, read_object, read_text, shown
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Computed, Readable
from flaxformer_lite.pretrained.foreign.zarr_arrays import open_zarr
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "MaxText checkpoint"
METADATA = "_METADATA"
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
NORM = "pre_self_attention_layer_norm.scale"
QUERY = "self_attention.query.kernel"
KEY = "self_attention.key.kernel"
UP = "mlp.wi_0.kernel"
RANKS = {"as_is": (1, 2), "in": (2, 3), "out": (3, 3)}
BASE = {  # of MaxText's base.yml; others of these values are refused, but for the first four
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
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
    "quantization": "",
}
READ = ("decoder_block", "rope_type", "rope_max_timescale", "normalization_layer_epsilon")
LLAMA31 = {  # LLaMARotaryEmbedding
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LENGTH = 8192  # of texts; no number depends on it


def find(folder: Path) -> Path | None:
    """Finds `items` of a step: the folder itself, in it, or in the newest step of a folder."""
    if not folder.is_dir():
        return None
    steps = [child for child in folder.iterdir() if child.name.isdigit()]
    newest = [max(steps, key=lambda child: int(child.name)) / "items"] if steps else []
    for place in (folder, folder / "items", *newest):
        if (place / METADATA).is_file() and EMBEDDING in _names(place):
            return place
    return None


def describe(place: Path) -> list[str]:
    """Describes a checkpoint in a line, and what was assumed in another."""
    arrays = _open(place)
    config = read_config(place)
    values, source = _settings(place)
    scanned = " in a scanned stack" if _scan_axis(arrays) is not None else ""
    lines = [
        f"{place}: a checkpoint of MaxText: {config['model_type']} with"
        f" {config['num_hidden_layers']} layers{scanned}, width {config['hidden_size']},"
        f" {config['num_attention_heads']} heads of {config['head_dim']}"
        f" ({config['num_key_value_heads']} for keys and values), feed-forward"
        f" {config['intermediate_size']}, vocabulary {config['vocab_size']:,}"
    ]
    if source:
        told = set(values)
        if "rope_scaling" in config:  # by the name of the model
            lines[0] += ", the positions of Llama 3.1"
            told.add("rope_type")
        assumed = [f"{name}={brief(BASE[name])}" for name in READ if name not in told]
        assumed.append(f"texts of up to {LENGTH:,} tokens")
        lines.append(f"assumed, as {source.name} does not say: {', '.join(assumed)}")
    lines.append("it has no tokenizer: copy the files of the model's into the new folder")
    return lines


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Raises:
      WeightsError: the checkpoint is damaged or of another kind of model, or there is no .yml.
    """
    arrays = _open(place)
    axis = _scan_axis(arrays)
    shapes: dict[str, tuple[int, ...]] = {}
    layers = 0
    for path, array in arrays.items():
        match = re.fullmatch(r"decoder\.layers(?:_(\d+))?\.(.+)", path)
        if match and match[1]:
            layers = max(layers, int(match[1]) + 1)
            shapes.setdefault(match[2], tuple(array.shape))
        elif match and axis is not None:
            shape = tuple(array.shape)
            layers = shape[axis]
            shapes[match[2]] = shape[:axis] + shape[axis + 1 :]
    for name, rank in ((QUERY, 3), (KEY, 3), (UP, 2)):
        if len(shapes.get(name, ())) != rank:
            raise WeightsError(
                f"{place}: a checkpoint of MaxText whose {name} is"
                f" {brief(shapes.get(name, 'missing'))}; decoders of Llama's and Mistral's kind"
                " are read. Its to_huggingface.py writes others for transformers."
            )
    vocab_size, d_model = arrays[EMBEDDING].shape
    sizes = {
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
    published = _published(place)
    if published:
        return published
    return sizes | _config_of_yml(place, tied=LOGITS not in arrays)


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Raises:
      WeightsError: the checkpoint is damaged, or holds a parameter that Llama does not have.
    """
    arrays = _open(place)
    axis = _scan_axis(arrays)
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    interleaved = rope.get("rope_type", rope.get("type")) == "llama3"
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        match = re.fullmatch(r"decoder\.layers(?:_(\d+))?\.(.+)", path)
        row = LAYER.get(match[2]) if match else ENDS.get(path)
        scanned = bool(match) and not match[1] if match else False
        rank = len(array.shape) - scanned
        if row is None or (scanned and axis is None) or rank not in RANKS[row[1]]:
            raise WeightsError(
                f"{place}: holds {shown(path)} of shape {brief(list(array.shape))}, which no"
                " decoder of Llama's kind in MaxText has; adapters and quantized weights are not"
                " read."
            )
        name, layout = row
        numbers: list[int | None] = [int(match[1]) if match and match[1] else None]
        if scanned and axis is not None:
            numbers = list(range(array.shape[axis]))
        for number in numbers:
            index: tuple[int | slice, ...] = ()
            if scanned and number is not None and axis is not None:
                index = (*[slice(None)] * axis, number)
            tensor: Tensor = Arranged(array, _groups(layout, rank), index, f"{place}: {path}")
            if match:
                tensor = _as_published(tensor, match[2], config, interleaved)
            full = name if number is None else f"model.layers.{number}.{name}"
            tensors[full] = tensor
    return tensors


def _groups(layout: str, rank: int) -> tuple[tuple[int, ...], ...]:
    axes = tuple(range(rank))
    if layout == "in":  # [D, N, H] -> [N H, D]
        return (axes[1:], axes[:1])
    if layout == "out":  # [N, H, D] -> [D, N H]
        return (axes[-1:], axes[:-1])
    return tuple((axis,) for axis in axes)


def _as_published(tensor: Tensor, name: str, config: Json, interleaved: bool) -> Tensor:
    """Undoes the division of queries, and the interleaving of queries and keys."""
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    def published(x: np.ndarray) -> np.ndarray:
        if interleaved:
            pairs = x.reshape(-1, width // 2, 2, x.shape[-1])
            x = pairs.transpose(0, 2, 1, 3).reshape(x.shape)
        if name == QUERY:
            return (x.astype(np.float32) * np.float32(width**0.5)).astype(x.dtype)
        return x

    if name not in (QUERY, KEY) or (name == KEY and not interleaved):
        return tensor
    return Computed(tensor, published)


def _config_of_yml(place: Path, *, tied: bool) -> Json:
    values, source = _settings(place)
    if source is None:
        raise WeightsError(
            f"{place}: a checkpoint of MaxText, which does not hold its rotary positions; put the"
            " .yml of its model (configs/models of MaxText), or the config.json that transformers"
            " has for the model, into the folder that you pass."
        )
    told: Json = BASE | values
    block = told["decoder_block"]
    if block not in ("llama2", "mistral"):
        raise WeightsError(
            f"{source}: decoder_block={brief(block)}: llama2 (Llama 2 and 3) and mistral are read."
        )
    for name, only in BASE.items():
        if name not in READ and told[name] != only:
            raise WeightsError(f"{source}: {name}={brief(told[name])}: only {only!r} is read.")
    if tied and told.get("normalize_embedding_logits", True):
        raise WeightsError(
            f"{source}: normalize_embedding_logits=True with tied logits, which divides them by the"
            " square root of the width: not read."
        )
    is_llama31 = str(told.get("model_name", "")).startswith("llama3.1")
    is_llama31 = is_llama31 or str(told["rope_type"]).startswith("llama3.1")
    if not is_llama31 and told["rope_type"] != "default":
        raise WeightsError(f"{source}: rope_type={brief(told['rope_type'])}: is not read.")
    for name in ("rope_max_timescale", "normalization_layer_epsilon"):
        if isinstance(told[name], bool) or not isinstance(told[name], int | float):
            raise WeightsError(f"{source}: {name}={brief(told[name])}: must be a number.")
    config: Json = {
        "model_type": "mistral" if block == "mistral" else "llama",
        "architectures": ["MistralForCausalLM" if block == "mistral" else "LlamaForCausalLM"],
        "rms_norm_eps": told["normalization_layer_epsilon"],
        "rope_theta": float(told["rope_max_timescale"]),
    }
    if block == "mistral":
        config["sliding_window"] = None
    return config | ({"rope_scaling": LLAMA31} if is_llama31 else {})


def _beside(place: Path) -> list[Path]:
    """Returns the folders in which a config may lie: items, its step, the folder of steps."""
    above = place.absolute()
    return [above, above.parent, above.parent.parent]


def _published(place: Path) -> Json:
    """Returns the config.json of transformers beside the checkpoint; {} if there is none."""
    for folder in _beside(place)[:2]:
        path = folder / "config.json"
        if path.is_file() and "model_type" in (config := read_object(path, error=WeightsError)):
            return config
    return {}


def _settings(place: Path) -> tuple[Json, Path | None]:
    """Reads the plain fields of the .yml beside the checkpoint."""
    for folder in _beside(place):
        for path in sorted(folder.glob("*.yml")):
            values: Json = {}
            for line in read_text(path, error=WeightsError).splitlines():
                if match := re.match(r"(\w+):\s*(\S.*)$", line):
                    values[match[1]] = _value(match[2])
            if {"decoder_block", "rope_max_timescale", "base_emb_dim"} & set(values):
                named = {"model_name": path.stem} if "model_name" not in values else {}
                return values | named, path
    return {}, None


def _value(text: str) -> object:
    """Reads a number, a flag, a list or a text of a yml; comments are left out."""
    plain = re.sub(r"\s+#.*$", "", text).strip()
    if plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    try:
        return ast.literal_eval(plain)
    except (ValueError, SyntaxError):
        return plain


def _scan_axis(arrays: Mapping[str, Readable]) -> int | None:
    """Returns the axis of layers in a scanned stack; None if layers are side by side.

    A norm's scale tells: it has the axes of layers and of features.
    """
    norm = arrays.get(f"decoder.layers.{NORM}")
    if norm is None or len(norm.shape) != 2:
        return None
    width = arrays[EMBEDDING].shape[1]
    return 0 if norm.shape[1] == width and norm.shape[0] != width else 1


def _metadata(place: Path) -> Json:
    return read_object(place / METADATA, {"tree_metadata": dict}, error=WeightsError)


def _names(place: Path) -> list[str]:
    """Lists the parameters of a checkpoint, without what the optimizer has of them."""
    names = []
    for leaf in _metadata(place).get("tree_metadata", {}).values():
        keys = leaf.get("key_metadata", []) if isinstance(leaf, dict) else []
        path = tuple(str(key.get("key")) for key in keys if isinstance(key, dict))
        if path[:2] == PARAMS:
            names.append(".".join(path[2:]))
    return names


def _open(place: Path) -> dict[str, Readable]:
    """Opens the parameters by their paths; they are read later."""
    driver = "zarr3" if _metadata(place).get("use_zarr3") else "zarr"
    merged = (place / "manifest.ocdbt").is_file()
    arrays: dict[str, Readable] = {}
    for name in _names(place):
        check_name(place / METADATA, name)
        path = ".".join((*PARAMS, name))
        kvstore: Json = {"driver": "file", "path": f"{place.absolute()}/{path}/"}
        if merged:
            base = f"file://{place.absolute()}/"
            kvstore = {"driver": "ocdbt", "base": base, "path": f"{path}/"}
        arrays[name] = open_zarr(kvstore, f"{place}: {name}", driver)
    return arrays
