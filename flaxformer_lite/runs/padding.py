"""Decides which batches of a run are packed or cut, and to which shapes."""

import dataclasses
import inspect
from collections.abc import Mapping

import flax.linen as nn
import jax

from flaxformer_lite import registry
from flaxformer_lite.config import ExperimentConfig, ModelConfig, plugin_name
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.data.padding import WIDTH_MULTIPLE, Buckets, Packer
from flaxformer_lite.objectives.rows import PACKING
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.sharding.activations import num_batch_shards
from flaxformer_lite.types import Batch, Params

Packers = Mapping[str, Packer | Buckets | None]
PADDING_TO_NOTE = 0.5  # share of padding from which on a notice is given
LENGTH_MULTIPLE = 8  # the notice recommends a multiple of this length


def plan_packing(
    cfg: ExperimentConfig, model: nn.Module, mesh: Mapping[str, int], data: Dataset
) -> tuple[Packers, list[tuple[str, str]]]:
    """Plans how training and evaluation leave out padding: packed, or else cut to a few lengths.

    Args:
      cfg: the experiment.
      model: its model.
      mesh: the devices along each axis.
      data: either split of its data.

    Returns:
      The packers of `train_step` and `eval_step` ({} for none), and rows for the run's banner.
    """
    train = dataclasses.replace(data, split="train")
    if not isinstance(train.objective, Task):
        return {}, []
    if not cfg.train.packing:
        return {}, _padding(train, cfg.data.length, "train.packing=False")
    held = dataclasses.replace(data, split="eval")
    size = cfg.train.batch_size
    made: Packers
    why = packing_error(cfg.model, model, train.tokenizer.pad_id)
    if mesh["context"] > 1:
        why = f"mesh.context={mesh['context']} splits texts over devices"
    if train.texts and not why:
        title = "packed"
        ways = num_batch_shards(mesh)
        made = {
            "train_step": train.packer(size, ways, cfg.train.accumulate),
            "eval_step": held.packer(size, ways),
        }
    else:
        title = "padded"
        padded = cutting_error(cfg.model, model, cfg.data.length)
        if padded:
            return {}, _padding(train, cfg.data.length, padded)
        made = {
            "train_step": train.buckets(size, mesh["context"]),
            "eval_step": held.buckets(size, mesh["context"]),
        }
    described = []
    for packer, split in zip(made.values(), ("training", "evaluation"), strict=True):
        if packer is not None:
            described.append(f"{split} {packer.describe()}")
    if described:
        return made, [(title, "; ".join(described))]
    if why:
        return {}, _padding(train, cfg.data.length, why)
    return {}, []


def beyond_window(cfg: ModelConfig, length: int) -> list[tuple[str, str]]:
    """Says that padding may be longer than a window, where the loss is a softmax over all columns.

    The last columns then see nothing in a local layer of a decoder. transformers' eager attention
    averages values there that window and mask rule out.
    """
    windows = [kind.window for kind in cfg.kinds if kind.window]
    if (cfg.skeleton, cfg.head) != ("decoder", "question_answering") or not windows:
        return []
    least = min(windows)
    if length <= least:
        return []
    words = (
        f"behind more than {least} tokens of padding, the window of model.family={cfg.family}, the"
        " loss is not that of transformers' eager attention;"
        f" --config.data.length={least} avoids it"
    )
    return [("notice", words)]


def packing_error(cfg: ModelConfig, model: nn.Module, pad_id: int) -> str:
    """Returns why packed rows would change a model's result; "" if they would not.

    Args:
      cfg: the model's record.
      model: the model.
      pad_id: the id of padding in its batches.
    """
    skeleton = getattr(model, "skeleton", "")
    classifies = (skeleton, cfg.head) == ("decoder", "sequence_classification")
    if classifies and cfg.pad_token_id is not None and cfg.pad_token_id != pad_id:
        # then the last token that is no padding is a column of padding
        return f"model.pad_token_id={cfg.pad_token_id} is not the tokenizer's padding, {pad_id}"
    side = "decode" if skeleton == "decoder" else "encode"
    method = getattr(model, side, None)
    if method is None or PACKING not in inspect.signature(method).parameters:
        return f"the class of model.family={cfg.family} takes no packed rows"
    if skeleton == "encoder_decoder" and cfg.head not in model.encoder_heads:
        return f"the decoder of model.family={cfg.family} reads padded rows"
    error = _padding_error(cfg, model)
    if error:
        return error
    for name in cfg.mixer_names:
        if ":" in name:
            return f"model.mixer.name={name} may not tell texts of a row apart"
    return ""


def cutting_error(cfg: ModelConfig, model: nn.Module, length: int) -> str:
    """Returns why a model's result depends on the padding behind the rows; "" if it does not.

    Args:
      cfg: the model's record.
      model: the model.
      length: columns of a padded row.
    """
    if not getattr(model, "skeleton", ""):
        return f"the class of model.family={cfg.family} may count padding"
    error = _padding_error(cfg, model)
    if error:
        return error
    for name in cfg.mixer_names:
        if ":" in name and _parameters(model, length) != _parameters(model, WIDTH_MULTIPLE):
            return f"model.mixer.name={name} reads rows of one length only"
    return ""


def _padding_error(cfg: ModelConfig, model: nn.Module) -> str:
    """Returns which part of a model reads the padding behind a row; "" if none is known to."""
    if cfg.head in getattr(model, "padded_heads", ()):
        return f"{cfg.head} of model.family={cfg.family} reads the last column"
    for plugin in cfg.feed_forwards:
        if not plugin.reads_one_token:
            return f"model.feed_forward.name={plugin_name(plugin)} may count padding"
    for name in cfg.mixer_names:
        if getattr(registry.resolve_class("mixers", name), "whole_rows", False):
            return f"model.mixer.name={name} depends on the length of a row"
    return ""


def _parameters(model: nn.Module, length: int) -> Params | None:
    """Returns the shapes of the parameters for rows of a length; None if it takes none of it."""
    ids = jax.ShapeDtypeStruct((1, length), "int32")
    try:
        made = jax.eval_shape(model.init, jax.random.key(0), ids)
    except (TypeError, ValueError):  # as where arrays of other shapes meet
        return None
    return jax.tree.map(lambda x: x.shape, made["params"])


def unpacked(batch: Batch) -> Batch:
    """Returns a batch, or its shapes, without its packing, so that padding is computed."""
    inputs = {name: x for name, x in batch["inputs"].items() if name != PACKING}
    return {**batch, "inputs": inputs}


def _padding(train: Dataset, length: int, why: str) -> list[tuple[str, str]]:
    lengths = train.records.sizes[:, 0]
    share = 1 - lengths.mean() / train.records.length
    if share < PADDING_TO_NOTE:
        return []
    longest = -(-int(lengths.max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    advice = f"; --config.data.length={longest} cuts no row" if longest < length else ""
    return [("notice", f"{share:.0%} of what is computed is padding, as {why}{advice}")]
