"""A tiny ModernBERT: masked tokens in rows that several documents share, on a laptop.

    flaxformer_lite train --config=modernbert_tiny --workdir=runs/modernbert_tiny

Its layers are global, local, local, global; a local one sees 64 tokens to each side. 30% of the
tokens are predicted, and no token sees another document of its row (Warner et al. 2024, section
2). benchmarks/unpadded.py measures what the shared rows save.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import modernbert
from flaxformer_lite.objectives.text.masked_lm import MaskedLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=modernbert.config(
                "tiny", vocab_size=4096, max_length=256, dropout=0.0, init_stddev=0.05
            ),
            objective=MaskedLm(rate=0.3),
            data=DataConfig(
                corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=4096), length=256
            ),
            optimizer=OptimizerConfig(
                learning_rate=3e-3, warmup_steps=30, b2=0.999, weight_decay=0.01
            ),
            train=TrainConfig(
                steps=200, batch_size=16, log_every=20, eval_every=100, checkpoint_every=100
            ),
        )
    )
