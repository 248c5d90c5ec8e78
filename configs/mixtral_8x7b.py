"""Mixtral 8x7B: Jiang et al. (2024), table 1. The mesh is for v5p of 256 chips.

    flaxformer_lite plan --config=mixtral_8x7b --topology=v5p:8x8x4
    flaxformer_lite train --config=mixtral_8x7b --workdir=/shared/runs/mixtral_8x7b \
        --config.data.path=FOLDER

The paper does not tell how it was trained; rates and batch are those of llama_70b.
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
from flaxformer_lite.models import mixtral
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=mixtral.config("8x7b", dtype="bfloat16", scan=True, remat="attention"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=32000), length=4096
            ),
            optimizer=OptimizerConfig(learning_rate=1.5e-4, warmup_steps=2000),
            train=TrainConfig(
                steps=250_000,
                batch_size=1024,
                accumulate=1,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
            mesh=MeshConfig(data=-1, fsdp=16, expert=8),
        )
    )
