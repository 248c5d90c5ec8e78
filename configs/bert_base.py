"""BERT base, 110M parameters, with masked tokens and next sentences.

    flaxformer_lite train --config=bert_base --workdir=runs/bert_base --config.data.path=FOLDER

The recipe of Devlin et al. (2019), section 3.1 and A.2: 1M steps of 256 sequences, the first 90% of
them 128 tokens long (--config.data.length=128), Adam at 1e-4 with 10k steps of warmup and linear
decay. Set train.accumulate to what fits the device.
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
            model=bert.config("base", vocab_size=30592, dtype="bfloat16"),
            objective=MaskedLm(pairs="next_sentence"),
            data=DataConfig(
                corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=30522), length=512
            ),
            optimizer=OptimizerConfig(
                learning_rate=1e-4,
                schedule="linear",
                warmup_steps=10_000,
                final_fraction=0.0,
                b2=0.999,
                eps=1e-6,
                weight_decay=0.01,
            ),
            train=TrainConfig(
                steps=1_000_000,
                batch_size=256,
                accumulate=16,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
        )
    )
