"""DeBERTa-v3, pretrained as published: beside a generator of its width and half its depth.

    flaxformer_lite train --config=deberta_v3 --workdir=runs/deberta_v3
    flaxformer_lite convert runs/deberta_v3 published/discriminator
    flaxformer_lite convert runs/deberta_v3 published/generator --auxiliary

The generator fills in masked tokens, and the discriminator finds those that are not original. Its
table of tokens is the generator's, without gradient, plus an offset of its own (He, Gao, Chen 2021,
section 3). The page has two layers and takes minutes on a laptop; with `:xsmall`, `:small`, `:base`
or `:large` the sizes and the recipe are those of the published `rtd.sh`: 1M steps of 256 rows (64
of xsmall). Set train.accumulate to what fits the device.
"""

import dataclasses

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import deberta_v2
from flaxformer_lite.objectives.text.replaced_tokens import ReplacedTokens

OBJECTIVE = ReplacedTokens(
    generator_size=1.0, generator_layers=0.5, detection_weight=10.0, embeddings="disentangled"
)
TINY = ExperimentConfig(
    model=deberta_v2.config(
        "tiny",
        vocab_size=4096,
        max_length=128,
        dropout=0.0,
        init_stddev=0.05,
        head="pretraining",
    ),
    objective=OBJECTIVE,
    data=DataConfig(corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=4096), length=128),
    optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=100, b2=0.999, weight_decay=0.01),
    train=TrainConfig(
        steps=1000, batch_size=32, log_every=20, eval_every=200, checkpoint_every=200
    ),
)


def get_config(size: str = "tiny"):
    if size == "tiny":
        return to_config_dict(TINY)
    rate = 3e-4 if size == "xsmall" else 1e-4
    rows = 64 if size == "xsmall" else 256
    published = dataclasses.replace(
        TINY,
        model=deberta_v2.config(f"v3_{size}", dtype="bfloat16", head="pretraining"),
        data=DataConfig(
            corpus="docstrings", tokenizer=TokenizerConfig(vocab_size=128_000), length=512
        ),
        optimizer=OptimizerConfig(
            learning_rate=rate,
            schedule="linear",
            warmup_steps=10_000,
            final_fraction=0.0,
            b2=0.999,
            eps=1e-6,
            weight_decay=0.01,
        ),
        train=TrainConfig(
            steps=1_000_000,
            batch_size=rows,
            log_every=100,
            eval_every=5000,
            checkpoint_every=5000,
        ),
    )
    return to_config_dict(published)
