"""BERT tiny (Turc et al. 2019) with masked tokens and sentence pairs, on a laptop.

    flaxformer_lite train --config=bert_tiny --workdir=runs/bert_tiny

300 steps on the docstrings of the installed packages take about two minutes on two CPU cores. A
model this narrow needs larger initial weights than BERT's 0.02, or it spends those steps learning
no more than how frequent each token is.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import bert
from flaxformer_lite.objectives.text.masked_lm import MaskedLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config(
                "tiny", vocab_size=4096, max_length=128, dropout=0.0, init_stddev=0.05
            ),
            objective=MaskedLm(pairs="next_sentence"),
            data=DataConfig(
                corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=4096), length=128
            ),
            optimizer=OptimizerConfig(
                learning_rate=4e-3, warmup_steps=50, b2=0.999, weight_decay=0.01
            ),
            train=TrainConfig(
                steps=300, batch_size=64, log_every=20, eval_every=100, checkpoint_every=100
            ),
        )
    )
