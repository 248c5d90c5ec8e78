"""Checkpoints of levanter: Llama and GPT-2, one zarr folder for each array.

The arrays tell the sizes: levanter keeps heads and their features as axes, and layers as the first
axis of a stack. The rest is in the `model` of the run's yaml, or in a config.json of transformers
for the same model; what a yaml leaves out has levanter's default. A GPT-2 needs neither.

Reference: src/levanter/tensorstore_serialization.py, models/llama.py, models/gpt2.py and
layers/attention.py of September 2025.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from flaxformer_lite.files.read import Json, brief, read_object, shown
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Readable, add
from flaxformer_lite.pretrained.foreign.yaml_files import read_number, read_yaml
from flaxformer_lite.pretrained.foreign.zarr_arrays import open_zarr
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "levanter checkpoint"
STEP = re.compile(r"step-(\d+)")
METADATA = "metadata.json"
FLAG = "inference"  # whether a dropout is off, stored beside the parameters
EMBEDDING = "embeddings/token_embeddings/weight"
POSITIONS = "embeddings/position_embeddings/weight"
LM_HEAD = "lm_head/weight"
LAYERS = re.compile(r"transformer/(?:layers|blocks)/(?:(stacked)|blocks/(\d+))/(.+)")
# The axes of an array that make each axis of a tensor, by its rank where layers are taken apart.
Groups = tuple[tuple[int, ...], ...]
AS_IS: dict[int, Groups] = {1: ((0,),), 2: ((0,), (1,))}
INTO: dict[int, Groups] = {4: ((0, 1, 2), (3,)), 3: ((0, 1), (2,)), 2: ((0, 1),)}
LLAMA_OUT: dict[int, Groups] = {3: ((0,), (1, 2))}
FUSED: dict[int, Groups] = {4: ((0,), (1, 2, 3)), 3: ((0, 1, 2),)}
GPT2_OUT: dict[int, Groups] = {3: ((0, 1), (2,)), 1: ((0,),)}
LLAMA_LAYER = {
    "input_layernorm": AS_IS,
    "post_attention_layernorm": AS_IS,
    "self_attn/q_proj": INTO,
    "self_attn/k_proj": INTO,
    "self_attn/v_proj": INTO,
    "self_attn/o_proj": LLAMA_OUT,
    "mlp/gate_proj": AS_IS,
    "mlp/up_proj": AS_IS,
    "mlp/down_proj": AS_IS,
}
GPT2_LAYER = {
    "ln_1": AS_IS,
    "ln_2": AS_IS,
    "attn/c_attn": FUSED,
    "attn/c_proj": GPT2_OUT,
    "mlp/c_fc": AS_IS,
    "mlp/c_proj": AS_IS,
}
LLAMA_ENDS = {
    EMBEDDING: "model.embed_tokens.weight",
    "transformer/norm/weight": "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}
GPT2_ENDS = {
    EMBEDDING: "wte.weight",
    POSITIONS: "wpe.weight",
    "transformer/ln_f/weight": "ln_f.weight",
    "transformer/ln_f/bias": "ln_f.bias",
}
# Fields of `model` that are read or must have their default, and those that change no number.
LLAMA_FIELDS: Json = {
    "layer_norm_epsilon": 1e-5,
    "rope": {},
    "activation_function": "silu",
    "hybrid_norm": False,
    "input_embedding_norm": False,
    "use_bias": False,
    "use_layer_norm_weight": True,
}
GPT2_FIELDS: Json = {
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "scale_attn_by_inverse_layer_idx": False,
    "use_bias": True,
}
READ = ("layer_norm_epsilon", "rope")
NO_NUMBER = (
    "type",
    "seq_len",
    "hidden_dim",
    "intermediate_dim",
    "mlp_scale",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "tie_word_embeddings",
    "initializer_range",
    "embed_pdrop",
    "resid_pdrop",
    "attn_pdrop",
    "upcast_attn",
    "attn_backend",
    "use_flash_attention",
    "flash_attention_block_size",
    "gradient_checkpointing",
    "scan_layers",
    "reference_checkpoint",
    "tokenizer",
)
LENGTH = 4096  # of a Llama's texts without a yaml; no number depends on it


def find(folder: Path) -> Path | None:
    """Finds a checkpoint: the folder itself, or the newest whole step of a run's."""
    if not folder.is_dir():
        return None
    if _is_checkpoint(folder):
        return folder
    return next((step for step in _steps(folder) if _is_checkpoint(step, whole=True)), None)


def _is_checkpoint(folder: Path, *, whole: bool = False) -> bool:
    """Returns whether levanter wrote this folder, and with `whole` whether it wrote all of it."""
    if whole and not (folder / METADATA).is_file():  # which it writes last
        return False
    return (folder / "model" / EMBEDDING / ".zarray").is_file()


def _steps(folder: Path) -> list[Path]:
    """Lists the steps in a folder, the newest first."""
    steps = {}
    for child in folder.iterdir():
        if match := STEP.fullmatch(child.name):
            steps[int(match[1])] = child
    return [steps[number] for number in sorted(steps, reverse=True)]


def describe(place: Path) -> list[str]:
    """Describes a checkpoint in a line, and what was assumed in another."""
    config = read_config(place)
    values, source = _settings(place)
    if _published(place):
        sizes = f"{brief(config['model_type'])}, by its config.json"
    else:
        layers = config.get("num_hidden_layers", config.get("n_layer"))
        heads = config.get("num_attention_heads", config.get("n_head"))
        width = config.get("hidden_size", config.get("n_embd"))
        sizes = (
            f"{config['model_type']} with {layers} layers, width {width}, {heads} heads, vocabulary"
            f" {config['vocab_size']:,}"
        )
    lines = [f"{place}: a checkpoint of levanter: {sizes}"]
    if not _published(place):
        known = LLAMA_FIELDS
        if config["model_type"] == "gpt2":
            known = GPT2_FIELDS
        assumed = [f"{name}={brief(value)}" for name, value in known.items() if name not in values]
        if assumed:
            why = "as there is no yaml"
            if source:
                why = f"as {source.name} does not say"
            lines.append(f"assumed, {why}: {', '.join(assumed)}")
    steps = []
    if STEP.fullmatch(place.name):
        steps = _steps(place.absolute().parent)
    for step in steps:
        if step.name == place.name:
            break
        if not _is_checkpoint(step, whole=True):
            lines.append(f"{step} is newer, but not whole, without {METADATA}: not read")
    lines.append("it has no tokenizer: copy the files of the model's into the new folder")
    return lines


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Raises:
      WeightsError: the checkpoint is damaged or of another kind of model, or a Llama has no yaml.
    """
    arrays = _open(place)
    if published := _published(place):
        return published
    shapes: dict[str, tuple[int, ...]] = {}
    layers = 0
    for path, array in arrays.items():
        for number, name, single in _by_layer(place, path, array):
            shapes[name] = single.shape
            layers = max(layers, number + 1)
    vocab_size, d_model = _shape(place, {EMBEDDING: arrays[EMBEDDING].shape}, EMBEDDING, 2)
    values, source = _settings(place)
    if POSITIONS in arrays:
        _check(source, values, GPT2_FIELDS)
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "vocab_size": vocab_size,
            "n_positions": arrays[POSITIONS].shape[0],
            "n_embd": d_model,
            "n_layer": layers,
            "n_head": _shape(place, shapes, "attn/c_attn/weight", 4)[2],
            "n_inner": _shape(place, shapes, "mlp/c_fc/weight", 2)[1],
            "activation_function": "gelu_new",
            "layer_norm_epsilon": read_number(source, values, "model.layer_norm_epsilon", 1e-5),
        }
    query = _shape(place, shapes, "self_attn/q_proj/weight", 4)
    if query[3] != d_model:
        raise WeightsError(
            f"{place}: its kernels begin with their inputs, as those of a levanter before 2024;"
            " its export_lm_to_hf writes a folder that is read here."
        )
    if source is None:
        raise WeightsError(
            f"{place}: a Llama of levanter, whose checkpoint does not hold its rotary positions;"
            " put the yaml of the run, with its model, or the config.json that transformers has for"
            " the model, into the folder that you pass."
        )
    if values.get("type") != "llama":
        raise WeightsError(f"{source}: model.type={brief(values.get('type'))}: llama is read.")
    _check(source, values, LLAMA_FIELDS)
    tied = LM_HEAD not in arrays
    if values.get("tie_word_embeddings", False) != tied:
        raise WeightsError(
            f"{source}: model.tie_word_embeddings={brief(not tied)}, where its checkpoint is"
            f" {'without' if tied else 'with'} {LM_HEAD}."
        )
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocab_size,
        "hidden_size": d_model,
        "intermediate_size": _shape(place, shapes, "mlp/gate_proj/weight", 2)[0],
        "num_hidden_layers": layers,
        "num_attention_heads": query[0] * query[1],
        "num_key_value_heads": query[0],
        "head_dim": query[2],
        "hidden_act": "silu",
        "max_position_embeddings": int(read_number(source, values, "model.seq_len", LENGTH)),
        "tie_word_embeddings": tied,
        "rms_norm_eps": read_number(source, values, "model.layer_norm_epsilon", 1e-5),
        **_rope(source, values.get("rope") or {}),
    }


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Raises:
      WeightsError: the checkpoint is damaged, or holds a parameter that the model does not have.
    """
    arrays = _open(place)
    kind = "Llama"
    rows = LLAMA_LAYER
    ends = LLAMA_ENDS
    above = "model.layers"
    if config.get("model_type") == "gpt2":
        kind = "GPT-2"
        rows = GPT2_LAYER
        ends = GPT2_ENDS
        above = "h"
    tensors: dict[str, Tensor] = {}
    for path, array in arrays.items():
        where = f"{place}: {path}"
        if path in ends and len(array.shape) in AS_IS:
            tensors[ends[path]] = Arranged(array, AS_IS[len(array.shape)], where=where)
            continue
        layers = list(_by_layer(place, path, array))
        for number, name, single in layers:
            owner = name.rpartition("/")[0]
            groups = rows.get(owner, {}).get(len(single.shape))
            if groups is None:
                layers = []
                break
            full = f"{above}.{number}.{name.replace('/', '.')}"
            add(tensors, full, Arranged(single.array, groups, single.index, where), where)
        if not layers:
            raise WeightsError(
                f"{place}: holds {shown(path)} of shape {brief(list(array.shape))}, which no"
                f" {kind} of levanter has; adapters are not read."
            )
    return tensors


def _by_layer(place: Path, path: str, array: Readable) -> Iterator[tuple[int, str, Arranged]]:
    """Yields the number of a layer, the name of a parameter in it, and the parameter."""
    match = LAYERS.fullmatch(path)
    if not match:
        return
    rank = len(array.shape)
    if not match[1]:
        yield int(match[2]), match[3], Arranged(array, _alone(rank))
        return
    if rank < 2:
        raise WeightsError(f"{place}: {path} has no axis of layers, as a stack of levanter has.")
    for layer in range(array.shape[0]):
        yield layer, match[3], Arranged(array, _alone(rank - 1), (layer,))


def _alone(rank: int) -> Groups:
    return tuple((axis,) for axis in range(rank))


def _shape(place: Path, shapes: dict[str, tuple[int, ...]], name: str, rank: int) -> tuple:
    shape = shapes.get(name, ())
    if len(shape) != rank:
        raise WeightsError(
            f"{place}: a checkpoint of levanter whose {name} is {brief(shape or 'missing')}; Llama"
            " and GPT-2 are read. Its export_lm_to_hf writes others for transformers."
        )
    return shape


def _check(source: Path | None, values: Json, known: Json) -> None:
    """Refuses fields of the model that might change numbers."""
    for name, value in values.items():
        if name in NO_NUMBER or (name in READ and name in known):
            continue
        if name not in known or value != known[name]:
            problem = "is not known here"
            if name in known:
                problem = f"only {known[name]!r} is read"
            raise WeightsError(f"{source}: model.{name}={brief(value)}: {problem}.")


def _rope(source: Path, rope: Json) -> Json:
    """Returns the fields of rotary positions."""
    kind = None
    if isinstance(rope, dict):
        kind = rope.get("type", "default")
    if kind == "llama3":
        defaults = {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        scaling = {
            name: read_number(source, rope, f"model.rope.{name}", usual)
            for name, usual in defaults.items()
        }
        length = int(scaling["original_max_position_embeddings"])
        scaling["original_max_position_embeddings"] = length
        theta = read_number(source, rope, "model.rope.theta", 500000)
        return {"rope_theta": theta, "rope_scaling": {"rope_type": "llama3", **scaling}}
    if kind not in ("default", "linear"):
        raise WeightsError(f"{source}: model.rope={brief(rope)}: default and llama3 are read.")
    factor = read_number(source, rope, "model.rope.factor", 1.0)
    fields: Json = {"rope_theta": read_number(source, rope, "model.rope.theta", 10000)}
    if factor != 1:
        fields["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return fields


def _published(place: Path) -> Json:
    """Returns the config.json of transformers beside the checkpoint; {} if there is none."""
    for folder in (place, place.absolute().parent):
        path = folder / "config.json"
        if path.is_file() and "model_type" in (config := read_object(path, error=WeightsError)):
            return config
    return {}


def _settings(place: Path) -> tuple[Json, Path | None]:
    """Reads `model` of the yaml beside the checkpoint."""
    for folder in (place.absolute(), place.absolute().parent):
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
            model = read_yaml(path).get("model")
            if isinstance(model, dict):
                return model, path
    return {}, None


def _open(place: Path) -> dict[str, Readable]:
    """Opens the arrays of the model by their paths; they are read later."""
    model = place / "model"
    arrays = {}
    for file in sorted(model.rglob(".zarray")):
        name = file.parent.relative_to(model).as_posix()
        if file.parent.name == FLAG:
            continue
        check_name(model, name)
        kvstore = {"driver": "file", "path": f"{file.parent.absolute()}/"}
        arrays[name] = open_zarr(kvstore, f"{place}: {name}")
    return arrays
