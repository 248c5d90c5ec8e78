"""A tiny GPT on a mixture of two texts, code and English, that ends with more English.

    flaxformer_lite train --config=mixture_tiny --workdir=runs/mixture
    flaxformer_lite train --config=mixture_tiny --workdir=runs/three \
        --config.data.mixture.own.path=my_text.txt --config.data.mixture.own.weight=0.5 \
        --config.data.mixture.own.epochs=4

Rows of code and English are read as 7 to 3 up to step 200, and as 3 to 7 after step 280.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.config.mixture import SourceConfig
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    sources = {
        "code": SourceConfig(corpus="stdlib_code", weight=0.7),
        "english": SourceConfig(corpus="docstrings", weight=0.3),
    }
    return to_config_dict(
        ExperimentConfig(
            model=gpt2.config("tiny", vocab_size=8192, max_length=128, dropout=0.0),
            objective=CausalLm(),
            data=DataConfig(
                mixture=sources,
                mixture_schedule="200-280: code=0.3, english=0.7",
                tokenizer=TokenizerConfig(vocab_size=8192),
                length=128,
            ),
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50),
            train=TrainConfig(
                steps=300, batch_size=16, log_every=20, eval_every=100, checkpoint_every=100
            ),
        )
    )
