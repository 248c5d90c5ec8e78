"""A tiny GPT on the sources of the standard library, in about two minutes on two CPU cores.

make demo
flaxformer_lite train --config=demo --workdir=runs/demo
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=gpt2.config("tiny", vocab_size=4096, max_length=128, dropout=0.0),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=4096), length=128
            ),
            optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=30),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=10,
                eval_every=100,
                checkpoint_every=100,
                sample_tokens=120,
            ),
        )
    )
