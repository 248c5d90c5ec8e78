"""T5 small, 60M parameters, with span corruption: Raffel et al. (2020), sections 3.1 and 3.3.4.

    flaxformer_lite train --config=t5_small --workdir=runs/t5_small --config.data.path=FOLDER

The paper: 2^19 steps of 128 sequences of 512 tokens, Adafactor with an inverse square root schedule
  of 10k steps of
warm-up, 1e-2 at its peak. Set train.accumulate to what fits the device.
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
from flaxformer_lite.objectives.text.span_corruption import SpanCorruption


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=t5.config("small", dtype="bfloat16"),
            objective=SpanCorruption(),
            data=DataConfig(
                corpus="docstrings",
                tokenizer=TokenizerConfig(name="sentencepiece", vocab_size=32000),
                length=512,
            ),
            optimizer=OptimizerConfig(
                name="adafactor",
                learning_rate=1e-2,
                schedule="rsqrt",
                warmup_steps=10_000,
                weight_decay=0.0,
                clip_norm=0.0,
            ),
            train=TrainConfig(
                steps=524_288,
                batch_size=128,
                accumulate=8,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
        )
    )
