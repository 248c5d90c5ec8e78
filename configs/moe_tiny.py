"""A four-layer Mixtral of eight experts, two for each token, on a laptop.

flaxformer_lite train --config=moe_tiny --workdir=runs/moe_tiny
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import mixtral
from flaxformer_lite.nn.feed_forwards.moe import MoeConfig
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=mixtral.config("tiny", vocab_size=8192, feed_forward=MoeConfig(num_experts=8)),
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
