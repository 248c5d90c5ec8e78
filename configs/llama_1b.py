"""A Llama-shaped decoder of 1.1B parameters, in TinyLlama's sizes (Zhang et al. 2024, table 1).

    flaxformer_lite train --config=llama_1b --workdir=runs/llama_1b --config.data.path=FOLDER

The paper: 2M tokens a step (1024 sequences of 2048), peak 4e-4, cosine to a tenth, 2000 steps of
  warm-up.
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
            model=llama.config("1b", dtype="bfloat16", scan=True, remat="full"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=32000), length=2048
            ),
            optimizer=OptimizerConfig(learning_rate=4e-4, warmup_steps=2000),
            train=TrainConfig(
                steps=1_430_000,
                batch_size=1024,
                accumulate=64,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
                sample_tokens=200,
            ),
        )
    )
