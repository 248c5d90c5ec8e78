"""The original Transformer, base: Vaswani et al. (2017), table 3 and section 5, on pairs of texts.

    flaxformer_lite train --config=transformer_base --workdir=runs/translate \
        --config.data.path=pairs.jsonl

Each line of the file is {"source": "...", "target": "..."}; with no file, documented Python
functions and their docstrings. The paper: 100k steps of 25k source and target tokens, Adam with b2
= 0.98, 4000 steps of warm-up to 512^-0.5 4000^-0.5, label smoothing 0.1. Published: 27.3 BLEU on
WMT 2014 English to German.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import transformer
from flaxformer_lite.objectives.text.seq2seq import Seq2seq


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=transformer.config("base", vocab_size=37120),
            objective=Seq2seq(label_smoothing=0.1),
            data=DataConfig(
                corpus="code_docstrings",
                tokenizer=TokenizerConfig(vocab_size=37000),
                length=256,
                target_length=256,
            ),
            optimizer=OptimizerConfig(
                learning_rate=6.99e-4,
                schedule="rsqrt",
                warmup_steps=4000,
                b1=0.9,
                b2=0.98,
                eps=1e-9,
                weight_decay=0.0,
                clip_norm=0.0,
            ),
            train=TrainConfig(
                steps=100_000,
                batch_size=128,
                accumulate=8,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
        )
    )
