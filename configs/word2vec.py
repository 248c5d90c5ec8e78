"""Word vectors by skip-gram, or with `:cbow` by continuous bag of words (Mikolov et al. 2013).

    flaxformer_lite train --config=word2vec --workdir=runs/words --config.data.path=my_folder
    flaxformer_lite similar --model runs/words --word king --analogy "paris france london"

Words are in lower case, and those that occur less than five times are left out. A row of
`data.length` words is cut from the text; what matters is the number of words that a run sees,
16,384 a step here. docs/word-vectors.md has figures.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.contrib.word_vectors.models import word2vec
from flaxformer_lite.registry import resolve_class

OBJECTIVES = {"skipgram": "skip_gram", "cbow": "cbow"}


def get_config(objective: str = "skipgram"):
    return to_config_dict(
        ExperimentConfig(
            model=word2vec.config("small", vocab_size=0),
            objective=resolve_class("objectives", OBJECTIVES.get(objective, objective))(),
            data=DataConfig(
                corpus="docstrings",
                tokenizer=TokenizerConfig(name="words", vocab_size=30000, min_count=5),
                length=64,
            ),
            optimizer=OptimizerConfig(
                learning_rate=1e-2,
                schedule="linear",
                final_fraction=0.0,
                warmup_steps=20,
                b2=0.999,
                weight_decay=0.0,
                clip_norm=0.0,
            ),
            train=TrainConfig(
                epochs=5.0,
                batch_size=256,
                log_every=50,
                eval_every=0,
                eval_batches=20,
                checkpoint_every=0,
            ),
        )
    )
