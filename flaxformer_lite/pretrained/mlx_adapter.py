"""Reads the form in which mlx-lm saves an adapter, as PEFT's fields and names."""

from pathlib import Path

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.nn.adapters.dora import MAGNITUDE
from flaxformer_lite.nn.adapters.lora import A, B
from flaxformer_lite.pretrained.adapter_layout import NAMES, ROOT
from flaxformer_lite.pretrained.safetensors import Tensor, open_file

WEIGHTS = "adapters.safetensors"
ENDINGS = {"lora_a": A, "lora_b": B, "m": MAGNITUDE}


def is_of_mlx(fields: Json) -> bool:
    """Returns whether an adapter_config.json is mlx-lm's, which has its own name for the method."""
    return "fine_tune_type" in fields and "peft_type" not in fields


def read_fields(fields: Json) -> Json:
    """Returns adapter_config.json as PEFT would write it.

    mlx-lm multiplies by its `scale` alone, where PEFT divides lora_alpha by the rank.

    Raises:
      ConfigError: whole layers were trained, or rank and scale are not numbers.
    """
    method = fields["fine_tune_type"]
    if method not in ("lora", "dora"):
        raise ConfigError(
            f"adapter_config.json: fine_tune_type={quote_value(method)}: only 'lora' and 'dora' are"
            " read; write the model where mlx-lm is installed: mlx_lm.fuse --model BASE"
            " --adapter-path FOLDER --save-path NEW."
        )
    given = fields.get("lora_parameters") or {}
    rank = given.get("rank")
    scale = given.get("scale")
    if not isinstance(rank, int) or not isinstance(scale, int | float):
        raise ConfigError(
            f"adapter_config.json: lora_parameters={quote_value(given)}: must have rank, a whole"
            " number, and scale, a number."
        )
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": float(scale * rank),
        "lora_dropout": float(given.get("dropout") or 0.0),
        "use_dora": method == "dora",
    }


def open_factors(file: Path) -> dict[str, Tensor]:
    """Opens the factors, transposed and named as in a file of PEFT."""
    found = {}
    for name, tensor in open_file(file).items():
        module, _, ending = name.rpartition(".")
        factor = ENDINGS.get(ending)
        if factor is None:
            found[name] = tensor
        elif factor == MAGNITUDE:
            found[ROOT + module + NAMES[factor]] = tensor
        else:
            found[ROOT + module + NAMES[factor]] = Tensor(tensor.array.T)
    return found
