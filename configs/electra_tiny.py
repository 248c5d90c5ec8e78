"""A two-layer ELECTRA and its generator, a quarter as wide, on a laptop.

    flaxformer_lite train --config=electra_tiny --workdir=runs/electra_tiny
    flaxformer_lite convert runs/electra_tiny published/discriminator
    flaxformer_lite convert runs/electra_tiny published/generator --auxiliary

1000 steps on the docstrings of the installed packages take a few minutes on two CPU cores, and find
one replaced token in twenty: as in the paper, detection is learned slowly at first.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import electra
from flaxformer_lite.objectives.text.replaced_tokens import ReplacedTokens


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=electra.config(
                "tiny",
                vocab_size=4096,
                max_length=128,
                dropout=0.0,
                init_stddev=0.05,
                head="pretraining",
            ),
            objective=ReplacedTokens(),
            data=DataConfig(
                corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=4096), length=128
            ),
            optimizer=OptimizerConfig(
                learning_rate=5e-4, warmup_steps=100, b2=0.999, weight_decay=0.01
            ),
            train=TrainConfig(
                steps=1000, batch_size=32, log_every=20, eval_every=200, checkpoint_every=200
            ),
        )
    )
