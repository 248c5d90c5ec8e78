"""One step of fine-tuning is torch's: loss, gradient norm and the weights after AdamW, for a model
of each skeleton."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from flaxformer_lite import load_pretrained
from flaxformer_lite.config import DataConfig, ExperimentConfig, OptimizerConfig, TrainConfig
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.objectives.text.seq2seq import Seq2seq
from flaxformer_lite.training import optimizer, program, state
from flaxformer_lite.training.bound_models import Models

TESTS = Path(__file__).parents[1]
OPTIMIZER = OptimizerConfig(
    learning_rate=1e-2,
    schedule="constant",
    warmup_steps=0,
    b2=0.999,
    weight_decay=0.1,
    clip_norm=1.0,
)


def classified(given, cfg):
    labels = given["labels"].astype(np.int32)
    targets = {"label": labels, "weights": np.ones(len(labels), np.float32)}
    return Classification(labels=tuple(map(str, range(cfg.num_labels)))), {}, targets


def predicted(labels, weights):
    labels = np.maximum(labels, 0).astype(np.int32)
    return {"labels": labels, "weights": weights.astype(np.float32)}


def continued(given, cfg):
    labels = np.roll(given["labels"], -1, axis=1)
    weights = (labels >= 0) & (np.arange(labels.shape[1]) < labels.shape[1] - 1)
    return CausalLm(), {}, predicted(labels, weights)


def answered(given, cfg):
    before = np.roll(given["labels"], 1, axis=1)
    before = np.where(before < 0, cfg.pad_token_id, before).astype(np.int32)
    before[:, 0] = cfg.pad_token_id  # where T5 starts
    targets = predicted(given["labels"], given["labels"] >= 0)
    return Seq2seq(label_smoothing=0.0), {"decoder_input_ids": before}, targets


CASES = {
    "bert_sequence_classification": classified,
    "gpt2_lm": continued,
    "t5_conditional_generation": answered,
}


@pytest.mark.nightly  # of gradients, tests/pretrained/test_parity.py; of the update, tests/training
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_torchs(name):
    model, params = load_pretrained(TESTS / "fixtures" / name, dropout=0.0)
    with np.load(TESTS / "updates" / name / "step.npz") as file:
        given = dict(file)
    objective, inputs, targets = CASES[name](given, model.cfg)
    inputs |= {key: given[key].astype(np.int32) for key in ("input_ids", "attention_mask")}
    parts = {"train": TrainConfig(steps=10, batch_size=2), "data": DataConfig(length=9)}
    cfg = ExperimentConfig(model=model.cfg, objective=objective, optimizer=OPTIMIZER, **parts)
    before = state.create(lambda: params, optimizer.build(cfg.optimizer, 10))
    train_step = jax.jit(program.train_step(cfg, Models(cfg.objective, model)))
    after, metrics = train_step(before, {"inputs": inputs, "targets": targets})
    np.testing.assert_allclose(metrics["loss"], given["loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], given["norm"], rtol=1e-4)
    due = flatten_dict(load_pretrained(TESTS / "updates" / name)[1], sep="/")
    moved = 0.0
    for path, values in flatten_dict(after.params, sep="/").items():
        # its gradient is zero but for rounding, which Adam blows up
        if not path.endswith("key/bias"):
            # A hundredth of the rate: Adam divides by the gradient's own size, and so blows up the
            # rounding of one near zero, by 3e-5 with jax 0.12.
            np.testing.assert_allclose(values, due[path], atol=1e-4, err_msg=path)
        moved = max(moved, np.abs(values - flatten_dict(params, sep="/")[path]).max())
    assert moved > 5e-3, "a step of 1e-2 that does not move"
