"""Reranking: fine-tunes a published model to score how well a passage answers a query.

    flaxformer_lite train --config=rerank --workdir=runs/rerank --config.train.init_from=DIR \
        --config.data.path=train.csv --config.data.eval_path=dev.csv
    flaxformer_lite predict --model runs/rerank --data candidates.csv --output ranked.csv

Rows have a `query`, a `passage` and a `label`, 1 if it answers and 0 if not; those of held-out
queries should hold all of their candidates. Without `init_from` the BERT below starts from random
weights.
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
from flaxformer_lite.objectives.tables.reranking import Reranking


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config(
                "tiny", head="sequence_classification", vocab_size=4096, max_length=512, dropout=0.1
            ),
            objective=Reranking(),
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
