"""A recurrent encoder-decoder with attention, `:bahdanau` or `:luong`, on your table.

    flaxformer_lite train --config=seq2seq_recurrent_tiny:luong --workdir=runs/luong \
        --config.data.path=train.csv

The table has the columns source and target, or others' names of them, as for the page `translate`.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.contrib.recurrent.models import seq2seq_recurrent
from flaxformer_lite.objectives.tables.text_to_text import TextToText

PRESETS = {"bahdanau": "tiny", "luong": "tiny_luong"}


def get_config(attention: str = "bahdanau"):
    if attention not in PRESETS:
        raise ValueError(f"no {attention!r}; choose from {', '.join(PRESETS)}.")
    return to_config_dict(
        ExperimentConfig(
            model=seq2seq_recurrent.config(PRESETS[attention], vocab_size=4096),
            objective=TextToText(),
            data=DataConfig(
                tokenizer=TokenizerConfig(name="sentencepiece", vocab_size=4000),
                length=64,
                eval_fraction=0.1,
            ),
            optimizer=OptimizerConfig(
                learning_rate=2e-3,
                schedule="linear",
                final_fraction=0.0,
                warmup_steps=0,
                warmup_share=0.1,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
