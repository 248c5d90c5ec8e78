"""Text classification: fine-tunes a published encoder, decoder or encoder-decoder on your table.

    flaxformer_lite train --config=classify --workdir=runs/spam --config.train.init_from=DIR \
        --config.data.path=train.csv --config.data.eval_path=dev.csv

DIR is a directory that transformers saved, or another run's workdir; model, tokenizer and sizes
come from it. Without `init_from` a tiny BERT starts from random weights, or with
`--config=classify:recurrent_encoder` a bidirectional LSTM. `--config.objective.kind=number`
predicts a number, `multiple` several labels per row. Learning rate, warmup and batch size are those
of Devlin et al. (2019), appendix A.3.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.objectives.tables.classification import Classification
from flaxformer_lite.registry import resolve


def get_config(family: str = "bert"):
    return to_config_dict(
        ExperimentConfig(
            model=resolve("models", family).config(
                "tiny", head="sequence_classification", vocab_size=4096, max_length=512, dropout=0.1
            ),
            objective=Classification(),
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
