"""Which batches of a run are computed in packed rows, and in which shapes."""

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

MUCH = 0.5  # share of padding that is worth a notice
ROUNDED = 8  # multiple that lengths are advised in


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
      What packs the batches of `train_step` and `eval_step`, {} if nothing does, and what a run
      says about it.
    """
    train = dataclasses.replace(data, split="train")
    if not train.texts:
        return {}, []
    why = obstacle(cfg.model, model) if cfg.train.packing else "train.packing=False"
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


def obstacle(cfg: ModelConfig, model: nn.Module) -> str:
    """Returns why a model's rows cannot be packed with the same result; "" if they can."""
    skeleton = getattr(model, "skeleton", "")
    method = getattr(model, "decode" if skeleton == "decoder" else "encode", None)
    if method is None or PACKING not in inspect.signature(method).parameters:
        return f"the class of model.family={cfg.family} takes no packed rows"
    if skeleton == "encoder_decoder" and cfg.head not in model.encoder_heads:
        return f"the decoder of model.family={cfg.family} reads padded rows"
    if cfg.head in getattr(model, "padded_heads", ()):
        return f"{cfg.head} of model.family={cfg.family} reads the last column"
    plugins = [cfg.feed_forward, *(kind.feed_forward for kind in cfg.kinds)]
    if outside := [plugin_name(plugin) for plugin in plugins if plugin is not None]:
        return f"model.feed_forward.name={outside[0]} may count padding"
    if mixers := [name for name in cfg.mixer_names if ":" in name]:
        return f"model.mixer.name={mixers[0]} may not tell texts of a row apart"
    return ""


def packed_shapes(batch: Any, packer: Packer) -> tuple[Any, ...]:
    """Returns a batch's shapes with each packing, the most frequent first.

    Args:
      batch: shapes, dtypes and shardings of a whole batch, packed or not.
      packer: the packer.
    """
    return tuple(
        {
            **batch,
            "inputs": batch["inputs"]
            | {PACKING: jax.ShapeDtypeStruct(packer.array_shape(shape), "int32")},
        }
        for shape in packer.shapes
    )


def unpacked(batch: Any) -> Any:
    """Returns a batch, or its shapes, to be computed as it is padded."""
    inputs = {name: x for name, x in batch["inputs"].items() if name != PACKING}
    return {**batch, "inputs": inputs}


def shape_of(batch: Any) -> tuple[int, ...]:
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
