"""Checkpoints of T5X: a tree in msgpack, whose large arrays lie beside it as zarr folders.

The sizes of the model are those of its arrays; what arrays do not tell is read from the gin file of
the run, if it is there, or has the value of all published models. A config.json in the folder, as
transformers writes it, is used instead.

Reference: Roberts et al., "Scaling Up Models and Data with t5x and seqio" (2022), section 2.2.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.files.read import Json, brief, read_text, shown
from flaxformer_lite.pretrained.flax_msgpack import read_tree
from flaxformer_lite.pretrained.foreign.arranged import Arranged, Readable
from flaxformer_lite.pretrained.safetensors import Tensor, WeightsError, check_name

FORM = "T5X checkpoint"
TREE = "checkpoint"  # the file that holds the tree
FOLDER = re.compile(r"checkpoint_(\d+)")  # one of a run's, by its step
GIN = ("operative_config.gin", "config.gin", "model.gin")
ARRAY_NAME = re.compile(r"\w+(/\w+)*")
DTYPES = ("float32", "bfloat16", "float16")
SIDES = ("encoder", "decoder")
ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
MT5_VOCABULARY = 250112
LOCAL = "LocalSelfAttention"
GLOBAL = "TransientGlobalSelfAttention"
READABLE = "encoder-decoders of the T5 kind are read (T5, mT5, ByT5, Flan, UMT5, LongT5)"


def find(folder: Path) -> Path | None:
    """Finds a checkpoint: the folder itself, or the newest of a run's folder; None if neither is.

    Args:
      folder: `checkpoint_1000000`, or the MODEL_DIR that holds it.
    """
    if _is_checkpoint(folder):
        return folder
    steps = {}
    if folder.is_dir():
        for child in folder.iterdir():
            if (match := FOLDER.fullmatch(child.name)) and _is_checkpoint(child):
                steps[int(match[1])] = child
    return steps[max(steps)] if steps else None


def describe(place: Path) -> list[str]:
    """Describes a checkpoint in a line, and what it lacks in another.

    Args:
      place: a folder that `find` returned.
    """
    arrays = _open(place)
    config = _config(place, arrays)
    step = FOLDER.fullmatch(place.name)
    scanned = " in scanned stacks" if _is_scanned(arrays) else ""
    lines = [
        f"{place}: a checkpoint of T5X{f', step {int(step[1]):,}' if step else ''}:"
        f" {config['model_type']} with {config['num_layers']} + {config['num_decoder_layers']}"
        f" layers{scanned}, width {config['d_model']}, {config['num_heads']} heads of"
        f" {config['d_kv']}, feed-forward {config['d_ff']} ({config['feed_forward_proj']}),"
        f" vocabulary {config['vocab_size']:,}"
    ]
    if not (place / "spiece.model").is_file():
        lines.append(
            "it has no tokenizer: copy its sentencepiece.model to spiece.model of the new folder"
        )
    return lines


def read_config(place: Path) -> Json:
    """Derives the config.json that transformers writes for the same model.

    Args:
      place: a folder that `find` returned.

    Raises:
      WeightsError: the checkpoint is damaged, or of a model that is not of T5's kind.
    """
    return _config(place, _open(place))


def open_weights(place: Path, config: Json) -> dict[str, Tensor]:
    """Opens the parameters by the names that transformers gives them.

    Args:
      place: a folder that `find` returned.
      config: its config.json, or what `read_config` derives.

    Raises:
      WeightsError: the checkpoint is damaged, or holds a parameter that T5 does not have.
    """
    arrays = _open(place)
    _check_kind(place, arrays)
    attention = "SelfAttention"
    if config.get("model_type") == "longt5":
        is_local = config.get("encoder_attention_type", "local") == "local"
        attention = LOCAL if is_local else GLOBAL
    tensors = {}
    for path, array in arrays.items():
        for name, single in _by_layer(path, array):
            spelled = _published_name(name, attention)
            if spelled is None:
                raise WeightsError(f"{place}: holds {shown(path)}, which no T5 has; {READABLE}.")
            tensors[spelled] = _as_torch(place, path, single)
    return tensors


def _is_checkpoint(folder: Path) -> bool:
    """Returns whether T5X wrote this folder; TensorFlow has a text of the same name as its tree."""
    if any(folder.glob("target.*/.zarray")):
        return True
    try:
        with (folder / TREE).open("rb") as file:
            return file.read(1)[:1] in [bytes([0x80 + entries]) for entries in range(1, 16)]
    except OSError:
        return False


def _open(place: Path) -> dict[str, Readable]:
    """Opens the parameters, numpy or tensorstore arrays, by their paths below `target`."""
    path = place / TREE
    if not path.is_file():
        raise WeightsError(
            f"{path}: missing, though its arrays are there; fetch the whole folder again."
        )
    tree = read_tree(path)
    state = tree.get("optimizer", tree) if isinstance(tree, dict) else tree
    target = state.get("target") if isinstance(state, dict) else None
    if not isinstance(target, dict):
        raise WeightsError(f"{path}: holds no target, the parameters of a T5X checkpoint.")
    arrays = {}
    for name, leaf in _leaves(target):
        check_name(path, name)
        array = leaf
        if isinstance(leaf, dict):
            array = _open_zarr(place, name)
        elif not isinstance(leaf, np.ndarray):
            raise WeightsError(f"{path}: {name} is {brief(leaf)}, which is not an array.")
        dtype = np.dtype(getattr(array.dtype, "numpy_dtype", array.dtype))
        if dtype.name not in DTYPES:
            raise WeightsError(
                f"{path}: {name} has dtype {dtype}; must be one of {', '.join(DTYPES)}. T5X before"
                " June 2021 wrote bfloat16 as uint16."
            )
        arrays[name] = array
    return arrays


def _leaves(tree: dict, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields arrays, and the references that stand for those beside the file."""
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and "driver" not in value:
            yield from _leaves(value, f"{path}/")
        else:
            yield path, value


def _open_zarr(place: Path, name: str) -> Readable:
    import tensorstore

    # The folder follows from the name; what the reference says of it is not trusted.
    if not ARRAY_NAME.fullmatch(name):
        raise WeightsError(f"{place / TREE}: {shown(name)} is no name of an array.")
    where = place / f"target.{name.replace('/', '.')}"
    try:
        return tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "file", "path": f"{where}/"},
                # Zeros in place of a chunk that was not copied would be a silent error.
                "fill_missing_data_reads": False,
            },
            open=True,
            read=True,
        ).result()
    except ValueError as error:
        if not (where / ".zarray").is_file():
            raise WeightsError(
                f"{where}: missing, though {TREE} names it; fetch the whole folder again."
            ) from None
        why = shown(str(error).partition(" [")[0])
        raise WeightsError(f"{where}: not a zarr array ({why}); fetch it again.") from None


def _check_kind(place: Path, arrays: dict[str, Readable]) -> None:
    """Refuses what is no encoder-decoder with T5's parameters."""
    for path in ("token_embedder/embedding", *(f"{side}/{side}_norm/scale" for side in SIDES)):
        if path not in arrays:
            raise WeightsError(f"{place}: a checkpoint of T5X without {path}; {READABLE}.")


def _is_scanned(arrays: dict[str, Readable]) -> bool:
    return any(path.startswith("encoder/encoder/") for path in arrays)


def _config(place: Path, arrays: dict[str, Readable]) -> Json:
    """Derives the sizes from the shapes of the first layer, and the rest from the gin file."""
    _check_kind(place, arrays)
    shapes = {}
    layers = dict.fromkeys(SIDES, 0)
    for path, array in arrays.items():
        for name, single in _by_layer(path, array):
            shapes[name] = tuple(single.shape)
            if match := re.match(r"(encoder|decoder)/layers_(\d+)/", name):
                layers[match[1]] = max(layers[match[1]], int(match[2]) + 1)
    first = "encoder/layers_0"
    gated = f"{first}/mlp/wi_0/kernel" in shapes
    up = f"{first}/mlp/{'wi_0' if gated else 'wi'}/kernel"
    per_layer = f"{first}/relpos_bias/rel_embedding" in shapes
    table = f"{first if per_layer else 'encoder'}/relpos_bias/rel_embedding"
    query = f"{first}/attention/query/kernel"
    for needed in (up, table, query):
        if len(shapes.get(needed, ())) < 2:
            raise WeightsError(
                f"{place}: a checkpoint of T5X whose {needed} is"
                f" {brief(shapes.get(needed, 'missing'))}; {READABLE}."
            )
    vocab_size, d_model = shapes["token_embedder/embedding"]
    heads, buckets = shapes[table]
    has_sums = "encoder/side_relpos_bias/rel_embedding" in shapes
    untied = "decoder/logits_dense/kernel" in shapes
    gin = _read_gin(place)
    config: Json = {
        "model_type": "t5",
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": int(np.prod(shapes[query][1:])) // heads,
        "d_ff": shapes[up][1],
        "num_layers": layers["encoder"],
        "num_decoder_layers": layers["decoder"],
        "num_heads": heads,
        "feed_forward_proj": _activation(place, gated, gin),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "dropout_rate": 0.1,
        "tie_word_embeddings": not untied,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    kind = "T5"
    if per_layer:
        kind = "UMT5"
    elif has_sums or "EncoderLocalSelfAttention" in gin:
        kind = "LongT5"
        radius = re.search(r"^LOCAL_RADIUS *= *(\d+)", gin, re.M)
        block = re.search(r"^TOKENS_PER_BLOCK *= *(\d+)", gin, re.M)
        config["encoder_attention_type"] = "transient-global" if has_sums else "local"
        config["local_radius"] = int(radius[1]) if radius else 127
        config["global_block_size"] = int(block[1]) if block else 16
    elif vocab_size == MT5_VOCABULARY and untied:
        kind = "MT5"
    config["model_type"] = kind.lower()
    config["architectures"] = [f"{kind}ForConditionalGeneration"]
    return config


def _read_gin(place: Path) -> str:
    """Reads the gin file of the run, beside the checkpoint or in it; "" if there is none."""
    for folder in (place, place.absolute().parent):
        for name in GIN:
            if (folder / name).is_file():
                return read_text(folder / name, error=WeightsError)
    return ""


def _activation(place: Path, gated: bool, gin: str) -> str:
    """Returns the field of the feed-forward; without a gin file that of T5 1.1, or of T5 1.0."""
    match = re.search(r"^[\w./ ]*activations *= *[(\[]([^)\]]*)[)\]]", gin, re.M)
    if not match:
        return "gated-gelu" if gated else "relu"
    named = re.findall(r"['\"](\w+)['\"]", match[1])
    known = {"gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu"}
    if len(named) != 1 + gated or named[0] not in known or named[1:] not in ([], ["linear"]):
        raise WeightsError(
            f"{place}: its gin file has the activations {brief(named)}; {', '.join(known)} are"
            f" read, {'gated by' if gated else 'without'} 'linear'."
        )
    if gated:
        return f"gated-{known[named[0]]}"
    return "gelu_new" if named[0] == "gelu" else known[named[0]]


def _by_layer(path: str, array: Readable) -> Iterator[tuple[str, Readable]]:
    """Yields a parameter by its layer; that of a scanned stack has its layers on axis 1."""
    side, _, rest = path.partition("/")
    if side not in SIDES or not rest.startswith(f"{side}/"):
        yield path, array
        return
    if len(array.shape) < 2:
        raise WeightsError(f"{path}: has no axis of layers, as a scanned stack of T5X has.")
    for layer in range(array.shape[1]):
        yield f"{side}/layers_{layer}/{rest.partition('/')[2]}", array[:, layer]


def _published_name(path: str, attention: str) -> str | None:
    """Returns transformers' name of a parameter; None if T5 has no such parameter."""
    outside = {
        "token_embedder/embedding": "shared.weight",
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
    match = re.fullmatch(r"(encoder|decoder)/layers_(\d+)/(.+)", path)
    if not match:
        return None
    side, layer, rest = match.groups()
    inside = _encoder_layer(attention) if side == "encoder" else _decoder_layer()
    return f"{side}.block.{layer}.layer.{inside[rest]}.weight" if rest in inside else None


def _encoder_layer(attention: str) -> dict[str, str]:
    return {
        "pre_attention_layer_norm/scale": "0.layer_norm",
        "relpos_bias/rel_embedding": f"0.{attention}.relative_attention_bias",
        "attention/T5LayerNorm_0/scale": f"0.{attention}.global_input_layer_norm",
        **_projections("attention", f"0.{attention}"),
        **_feed_forward(1),
    }


def _decoder_layer() -> dict[str, str]:
    return {
        "pre_self_attention_layer_norm/scale": "0.layer_norm",
        "pre_cross_attention_layer_norm/scale": "1.layer_norm",
        "relpos_bias/rel_embedding": "0.SelfAttention.relative_attention_bias",
        **_projections("self_attention", "0.SelfAttention"),
        **_projections("encoder_decoder_attention", "1.EncDecAttention"),
        **_feed_forward(2),
    }


def _projections(theirs: str, published: str) -> dict[str, str]:
    return {f"{theirs}/{one}/kernel": f"{published}.{q}" for one, q in ATTENTION.items()}


def _feed_forward(number: int) -> dict[str, str]:
    names = {"pre_mlp_layer_norm/scale": f"{number}.layer_norm"}
    for matrix in ("wi", "wi_0", "wi_1", "wo"):
        names[f"mlp/{matrix}/kernel"] = f"{number}.DenseReluDense.{matrix}"
    return names


def _as_torch(place: Path, path: str, array: Readable) -> Tensor:
    """Turns a kernel [in, out] to torch's [out, in]; either may be heads and their features."""
    axes = tuple(range(len(array.shape)))
    groups: tuple[tuple[int, ...], ...] = tuple((axis,) for axis in axes)
    if path.endswith("/out/kernel"):
        groups = (axes[-1:], axes[:-1])
    elif path.endswith(("/kernel", "/rel_embedding")):
        groups = (axes[1:], axes[:1])
    where = place / f"target.{path.replace('/', '.')}"
    return Arranged(array, groups, where=str(where))
