"""Multiple choice: fine-tunes a published encoder on your table.

    flaxformer_lite train --config=choose --workdir=runs/swag --config.train.init_from=DIR \
        --config.data.path=train.csv --config.data.eval_path=dev.csv

Rows have a `question`, `choices` and a `label`, or SWAG's columns (sent1, sent2, ending0 to
ending3, label). A row of a batch is as many texts as it has choices. Without `init_from` the BERT
below starts from random weights.
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
from flaxformer_lite.objectives.tables.multiple_choice import MultipleChoice


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=bert.config(
                "tiny", head="multiple_choice", vocab_size=4096, max_length=512, dropout=0.1
            ),
            objective=MultipleChoice(),
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
                batch_size=16,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
