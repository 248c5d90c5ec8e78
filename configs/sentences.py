"""Sentence embeddings: fine-tunes a published encoder on your pairs of texts.

`convert` writes the result for sentence-transformers.

    flaxformer_lite train --config=sentences --workdir=runs/search --config.train.init_from=DIR \
        --config.data.path=train.csv --config.data.eval_path=dev.csv
    flaxformer_lite convert runs/search published/search
    flaxformer_lite embed --model published/search --text "A cat sleeps." --text "A kitten naps."

Rows have an `anchor`, a `positive` and, if you have them, `negatives`; with
`--config.objective.kind=scores` two texts and a `score`. All other rows of a batch are negatives
too, so a larger `train.batch_size` learns more. Without `init_from` the BERT below starts from
random weights, and wants a larger learning rate.
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
from flaxformer_lite.objectives.tables.sentence_embeddings import SentenceEmbeddings


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config("tiny", head="none", vocab_size=4096, max_length=512, dropout=0.1),
            objective=SentenceEmbeddings(),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=64, eval_fraction=0.1
            ),
            optimizer=OptimizerConfig(
                learning_rate=2e-5,
                schedule="linear",
                final_fraction=0.0,
                warmup_steps=0,
                warmup_share=0.1,
                b2=0.999,
                weight_decay=0.01,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=64,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
