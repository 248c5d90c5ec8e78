"""Writes tests/updates: what one step of AdamW by torch makes of a fixture of each skeleton.

    # in the environment of tools/make_fixtures.py
    /tmp/reference/bin/python tools/make_update_fixtures.py

Each directory holds the updated weights as save_pretrained leaves them, and step.npz: the batch,
  its loss, and the norm of
the gradients before they were clipped to 1. Weights decay except biases, norms and tables of
positions.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

ROOT = Path(__file__).parents[1] / "tests"
CLASSES = {
    "bert_sequence_classification": AutoModelForSequenceClassification,
    "gpt2_lm": AutoModelForCausalLM,
    "t5_conditional_generation": AutoModelForSeq2SeqLM,
}
RATE = 1e-2
DECAY = 0.1
CLIP = 1.0
UNDECAYED = re.compile(r"position|relative_attention_bias|wpe")


def batch(name: str, config) -> dict[str, np.ndarray]:
    """Draws two rows of unequal length, with labels."""
    draw = np.random.default_rng(0)
    ids = draw.integers(5, config.vocab_size, (2, 9))
    mask = np.ones((2, 9), np.int64)
    mask[1, 6:] = 0
    if name.startswith("bert"):
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": draw.integers(0, config.num_labels, 2),
        }
    if name.startswith("gpt2"):
        return {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask > 0, ids, -100)}
    labels = draw.integers(5, config.vocab_size, (2, 7))
    labels[1, 4:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def main() -> None:
    for name, kind in CLASSES.items():
        torch.manual_seed(0)
        # without dropout
        model = kind.from_pretrained(ROOT / "fixtures" / name, dtype=torch.float32).eval()
        given = batch(name, model.config)
        loss = model(**{key: torch.from_numpy(value) for key, value in given.items()}).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        decayed = {p: p.ndim == 2 and not UNDECAYED.search(n) for n, p in model.named_parameters()}
        groups = [
            {"params": [p for p in decayed if decayed[p] is on], "weight_decay": DECAY * on}
            for on in (True, False)
        ]
        torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8).step()
        out = ROOT / "updates" / name
        shutil.rmtree(out, ignore_errors=True)
        model.save_pretrained(out)
        (out / "generation_config.json").unlink(missing_ok=True)
        np.savez(out / "step.npz", loss=loss.item(), norm=norm.item(), **given)


if __name__ == "__main__":
    main()
