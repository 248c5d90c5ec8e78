"""Decides which batches of a run are computed in packed rows, and in which shapes."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax

from flaxformer_lite.config import ExperimentConfig, ModelConfig, plugin_name
from flaxformer_lite.data.packed_batches import Packer
from flaxformer_lite.data.pipeline import Dataset
from flaxformer_lite.objectives.rows import PACKING
from flaxformer_lite.types import Batch

MUCH = 0.5  # share of padding from which on a notice is given
ROUNDED = 8  # the notice recommends a multiple of this length


def packers(
    cfg: ExperimentConfig, model: nn.Module, mesh: Mapping[str, int], data: Dataset
) -> tuple[dict[str, Packer | None], list[tuple[str, str]]]:
    """Plans the packing of training and evaluation.

    Args:
      cfg: the experiment.
      model: its model.
      mesh: the devices along each axis.
      data: either split of its data.

    Returns:
      The packers of `train_step` and `eval_step` ({} for none), and rows for the run's banner.
    """
    train = dataclasses.replace(data, split="train")
    if not train.texts:
        return {}, []
    why = "train.packing=False"
    if cfg.train.packing:
        why = obstacle(cfg.model, model, train.tokenizer.pad_id)
    if mesh["context"] > 1:
        why = f"mesh.context={mesh['context']} splits texts over devices"
    if why:
        return {}, _padding(train, cfg.data.length, why)
    size = cfg.train.batch_size
    ways = mesh["data"] * mesh["fsdp"]
    made = {
        "train_step": train.packer(size, ways, cfg.train.accumulate),
        "eval_step": dataclasses.replace(data, split="eval").packer(size, ways),
    }
    packer = made["train_step"]
    if packer is None:
        return made, []
    words = (
        f"texts of {packer.mean:.1f} tokens side by side: {packer.share:.0%} of the padded"
        f" batch is computed, {1 - packer.filled:.0%} of it padding"
    )
    return made, [("packed", words)]


def obstacle(cfg: ModelConfig, model: nn.Module, pad_id: int) -> str:
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
    method = getattr(model, "decode" if skeleton == "decoder" else "encode", None)
    if method is None or PACKING not in inspect.signature(method).parameters:
        return f"the class of model.family={cfg.family} takes no packed rows"
    if skeleton == "encoder_decoder" and cfg.head not in model.encoder_heads:
        return f"the decoder of model.family={cfg.family} reads padded rows"
    if cfg.head in getattr(model, "padded_heads", ()):
        return f"{cfg.head} of model.family={cfg.family} reads the last column"
    for plugin in (cfg.feed_forward, *(kind.feed_forward for kind in cfg.kinds)):
        if plugin is not None:
            return f"model.feed_forward.name={plugin_name(plugin)} may count padding"
    for name in cfg.mixer_names:
        if ":" in name:
            return f"model.mixer.name={name} may not tell texts of a row apart"
    return ""


def packed_shapes(batch: Batch, packer: Packer) -> tuple[Batch, ...]:
    """Returns a batch's shapes in each packing, the most frequent first.

    Args:
      batch: shapes, dtypes and shardings of a whole batch, packed or not.
      packer: the packer.
    """
    batches: list[Any] = []
    for shape in packer.shapes:
        packing = jax.ShapeDtypeStruct(packer.array_shape(shape), "int32")
        batches.append({**batch, "inputs": {**batch["inputs"], PACKING: packing}})
    return tuple(batches)


def unpacked(batch: Batch) -> Batch:
    """Returns a batch, or its shapes, without its packing, to be computed with padding."""
    inputs = {name: x for name, x in batch["inputs"].items() if name != PACKING}
    return {**batch, "inputs": inputs}


def shape_of(batch: Batch) -> tuple[int, ...]:
    """Returns the shape of a batch's packing, () without one."""
    packing = batch["inputs"].get(PACKING)
    return () if packing is None else tuple(packing.shape)


def _padding(train: Dataset, length: int, why: str) -> list[tuple[str, str]]:
    lengths = train.records.lengths
    share = 1 - lengths.mean() / train.records.length
    if share < MUCH:
        return []
    longest = -(-int(lengths.max()) // ROUNDED) * ROUNDED
    advice = f"; --config.data.length={longest} cuts no row" if longest < length else ""
    return [("notice", f"{share:.0%} of what is computed is padding, as {why}{advice}")]
