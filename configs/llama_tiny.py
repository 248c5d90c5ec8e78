"""A four-layer Llama with grouped-query attention, on a laptop.

flaxformer_lite train --config=llama_tiny --workdir=runs/llama_tiny
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
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=llama.config("tiny", vocab_size=8192),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=8192), length=128
            ),
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=20,
                eval_every=100,
                checkpoint_every=100,
                sample_tokens=100,
            ),
        )
    )
