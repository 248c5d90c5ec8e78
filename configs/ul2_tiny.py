"""A two-layer T5 with UL2's mixture of denoisers, on a laptop.

    flaxformer_lite train --config=ul2_tiny --workdir=runs/ul2_tiny

300 steps on the docstrings of the installed packages take about two minutes on two CPU cores.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import t5
from flaxformer_lite.objectives.text.ul2 import Ul2


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=t5.config("tiny", vocab_size=8192, dropout=0.0),
            objective=Ul2(),
            data=DataConfig(
                corpus="docstrings",
                tokenizer=TokenizerConfig(name="sentencepiece", vocab_size=8192),
                length=128,
            ),
            optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=50),
            train=TrainConfig(
                steps=300, batch_size=32, log_every=20, eval_every=100, checkpoint_every=100
            ),
        )
    )
