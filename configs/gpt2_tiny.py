"""A four-layer GPT-2 that trains on a laptop, with any position encoding.

    flaxformer_lite train --config=gpt2_tiny --workdir=runs/gpt2_tiny
    flaxformer_lite train --config=gpt2_tiny:alibi --workdir=runs/gpt2_alibi \
        --config.data.path=my_text.txt

300 steps on the sources of the standard library take about a minute on two CPU cores.
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
from flaxformer_lite.registry import resolve_class


def get_config(position: str = "learned"):
    return to_config_dict(
        ExperimentConfig(
            model=gpt2.config(
                "tiny",
                vocab_size=8192,
                max_length=128,
                dropout=0.0,
                position=resolve_class("positions", position)(),
            ),
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
