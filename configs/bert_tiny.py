"""BERT tiny (Turc et al. 2019) with masked tokens and sentence pairs, on a laptop.

    python train.py --config=configs/bert_tiny.py --workdir=runs/bert_tiny

300 steps on the docstrings of the installed packages take about a minute on two CPU cores.
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
from flaxformer_lite.objectives.masked_lm import MaskedLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config("tiny", vocab_size=8192, max_length=128, dropout=0.0),
            objective=MaskedLm(pairs="next_sentence"),
            data=DataConfig(corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=8192), length=128),
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50, b2=0.999, weight_decay=0.01),
            train=TrainConfig(steps=300, batch_size=32, log_every=20, eval_every=100, checkpoint_every=100),
        )
    )
