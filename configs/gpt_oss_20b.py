"""gpt-oss-20b: OpenAI (2025), "gpt-oss-120b & gpt-oss-20b Model Card", table 1. The mesh is for v5p
of 64 chips.

    flaxformer_lite plan --config=gpt_oss_20b --topology=v5p:4x4x4
    flaxformer_lite train --config=gpt_oss_20b --workdir=/shared/runs/gpt_oss_20b \
        --config.data.path=FOLDER

The card does not tell how it was trained; rates are those of mixtral_8x7b.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import gpt_oss
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=gpt_oss.config("20b", dtype="bfloat16", scan=True, remat="attention"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=200_000), length=4096
            ),
            optimizer=OptimizerConfig(learning_rate=1.5e-4, warmup_steps=2000),
            train=TrainConfig(
                steps=250_000,
                batch_size=256,
                accumulate=1,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
            mesh=MeshConfig(data=-1, fsdp=8, expert=8),
        )
    )
