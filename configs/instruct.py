"""Instruction tuning: fine-tunes a published decoder on conversations, or prompts and responses.

    flaxformer_lite train --config=instruct --workdir=runs/assistant --config.train.init_from=DIR \
        --config.data.path=train.jsonl

DIR is a Llama, Qwen, GPT-2, ... that transformers saved, or another run's workdir; model,
tokenizer, chat template and sizes come from it. Without `init_from` the tiny Llama below starts
from random weights, with a vocabulary of the table's texts. Rows have `messages`, or prompt and
response, or Alpaca's instruction, input and output. `model.adapter.name=lora` trains a small part
of the weights, and then starts from the rate of adapters, 2e-4.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import llama
from flaxformer_lite.objectives.tables.instruction import Instruction


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=llama.config("tiny", vocab_size=4096),
            objective=Instruction(),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=256, eval_fraction=0.1
            ),
            optimizer=OptimizerConfig(
                learning_rate=2e-5,
                schedule="cosine",
                warmup_steps=0,
                warmup_share=0.1,
                weight_decay=0.0,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
