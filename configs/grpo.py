"""Reinforcement learning of a tuned decoder, from rewards of the answers that it writes itself.

    flaxformer_lite train --config=grpo --workdir=runs/rewarded --config.train.init_from=DIR \
        --config.data.path=prompts.jsonl

DIR is a run of configs/instruct.py, or a Llama, Qwen, ... that transformers saved; model,
tokenizer, chat template and sizes come from it. Rows have a prompt, a text or messages, and what
the rewards read, such as an answer. A step draws `objective.group` answers to each of
`train.batch_size` prompts. GRPO of Shao et al. (2024), with the learning rate and the clipping of
their section 4.2, and without a divergence, as of Liu et al. (2025); docs/rl.md has the others.
`model.adapter.name=lora` trains a small part of the weights, from the rate of adapters, 2e-4.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.contrib.rl.objectives.grpo import Grpo
from flaxformer_lite.models import llama


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=llama.config("tiny", vocab_size=4096, dropout=0.0),
            objective=Grpo(answer_length=128),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=512, eval_fraction=0.1
            ),
            optimizer=OptimizerConfig(
                learning_rate=1e-6,
                schedule="constant",
                warmup_steps=0,
                warmup_share=0.05,
                weight_decay=0.0,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=8,
                log_every=5,
                eval_every=50,
                eval_batches=1,
                checkpoint_every=50,
            ),
        )
    )
