"""GPT-2 small, 124M parameters, with the recipe of later reproductions.

    flaxformer_lite train --config=gpt2_small --workdir=runs/gpt2_small --config.data.path=FOLDER

The sizes are those of Radford et al. (2019), table 2. A step has 0.5M tokens, 480 sequences of
1024; 600k steps are 300 billion tokens. Set train.accumulate to what fits the device. The
vocabulary is padded to a multiple of 128, so that meshes divide it. Published: held-out loss 2.85
on OpenWebText at the end (GPT-2's own vocabulary).
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import gpt2
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=gpt2.config("small", vocab_size=50304, dropout=0.0, dtype="bfloat16"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=50257), length=1024
            ),
            optimizer=OptimizerConfig(learning_rate=6e-4, warmup_steps=2000, final_fraction=0.1),
            train=TrainConfig(
                steps=600_000,
                batch_size=480,
                accumulate=40,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
                sample_tokens=200,
            ),
        )
    )
