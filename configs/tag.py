"""Word tagging, such as named entities: fine-tunes a published encoder or decoder on your table.

    flaxformer_lite train --config=tag --workdir=runs/entities --config.train.init_from=DIR \
        --config.data.path=train.conll --config.data.eval_path=dev.conll

Rows have `tokens` and `tags`: lists in jsonl and parquet, texts split at spaces in csv, sentences
in CoNLL files, of which .conllu has several columns of tags (`--config.data.columns=tags=xpos`).
Without `init_from` a tiny BERT starts from random weights, or with `--config=tag:recurrent_encoder`
a bidirectional LSTM.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.objectives.tables.tagging import Tagging
from flaxformer_lite.registry import resolve


def get_config(family: str = "bert"):
    return to_config_dict(
        ExperimentConfig(
            model=resolve("models", family).config(
                "tiny", head="token_classification", vocab_size=4096, max_length=512, dropout=0.1
            ),
            objective=Tagging(),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=128, eval_fraction=0.1
            ),
            optimizer=OptimizerConfig(
                learning_rate=5e-5,
                schedule="linear",
                final_fraction=0.0,
                warmup_steps=0,
                warmup_share=0.1,
                b2=0.999,
                weight_decay=0.01,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=32,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
