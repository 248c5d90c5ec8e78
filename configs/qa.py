"""Extractive question answering: fine-tunes a published model on your table.

    flaxformer_lite train --config=qa --workdir=runs/squad --config.train.init_from=DIR \
        --config.data.path=train-v2.0.json --config.data.eval_path=dev-v2.0.json

Rows have `question`, `context` and `answers`, {text, answer_start} as in SQuAD, whose own files are
also read. Lengths are those of Devlin et al. (2019); contexts that are longer are read in windows.
Without `init_from` the BERT below starts from random weights.
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
from flaxformer_lite.objectives.tables.question_answering import QuestionAnswering


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config(
                "tiny", head="question_answering", vocab_size=4096, max_length=512, dropout=0.1
            ),
            objective=QuestionAnswering(),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=384, eval_fraction=0.1
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
