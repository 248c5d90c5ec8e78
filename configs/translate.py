"""Translation, summarization and the like: fine-tunes a published encoder-decoder on your table.

    flaxformer_lite train --config=translate --workdir=runs/translate --config.train.init_from=DIR \
        --config.data.path=train.csv --config.objective.prefix="translate English to French: "

DIR is a T5, BART, Marian, ... that transformers saved, or another run's workdir; model, tokenizer
and sizes come from it. Without `init_from` the tiny T5 below starts from random weights, with a
vocabulary of the table's texts. The table has the columns source and target, or others' names of
them (document and summary, article and highlights, a translation per language). Summaries are
scored by ROUGE: `--config.objective.scored_by=rouge`.
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
from flaxformer_lite.objectives.tables.text_to_text import TextToText


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=t5.config("tiny", vocab_size=4096, dropout=0.1),
            objective=TextToText(),
            data=DataConfig(
                tokenizer=TokenizerConfig(name="sentencepiece", vocab_size=4000),
                length=128,
                eval_fraction=0.1,
            ),
            optimizer=OptimizerConfig(
                learning_rate=3e-4,
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
