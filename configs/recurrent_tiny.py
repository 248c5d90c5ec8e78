"""A two-layer recurrent language model that trains on a laptop, with `:rnn`, `:lstm` or `:gru`.

    flaxformer_lite train --config=recurrent_tiny:lstm --workdir=runs/lstm
    flaxformer_lite train --config=recurrent_tiny:gru --workdir=runs/gru \
        --config.data.path=my_text.txt

Embeddings, recurrent layers and tied logits; `--config.model.residual=sequential` and
`--config.model.mlp=plain` give it a transformer's layers. docs/course/recurrent.md compares the
cells.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.contrib.recurrent.models import recurrent
from flaxformer_lite.objectives.text.causal_lm import CausalLm
from flaxformer_lite.registry import resolve_class

CELLS = ("rnn", "lstm", "gru")


def get_config(cell: str = "lstm"):
    if cell not in CELLS:
        raise ValueError(f"no {cell!r}; choose from {', '.join(CELLS)}.")
    return to_config_dict(
        ExperimentConfig(
            model=recurrent.config("tiny", vocab_size=8192, mixer=resolve_class("mixers", cell)()),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=8192), length=128
            ),
            optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=50),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=20,
                eval_every=100,
                checkpoint_every=100,
                sample_tokens=100,
            ),
        )
    )
