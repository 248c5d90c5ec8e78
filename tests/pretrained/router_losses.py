"""Cases of the training loss of families with experts, for both torch's side and ours."""

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).with_name("families")
STORED = Path(__file__).with_name("router_losses.json")
IGNORED = -100
FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "mixtral",
    "nllb_moe",
    "olmoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "switch_transformers",
)
# large factors, which a test cannot miss; that of the first as gpt-oss-20b's file has it
CASES = {
    "off": {"output_router_logits": False, "router_aux_loss_coef": 0.9, "router_z_loss_coef": 0.7},
    "on": {"output_router_logits": True, "router_aux_loss_coef": 0.9, "router_z_loss_coef": 0.7},
}


def family(stem):
    return json.loads((FOLDER / f"{stem}.json").read_text())


def labels(given):
    """Returns a label for each token that is no padding."""
    prefix = "decoder_" if "decoder_input_ids" in given else ""
    mask = given[f"{prefix}attention_mask"]
    return np.where(mask, given[f"{prefix}input_ids"], IGNORED)
