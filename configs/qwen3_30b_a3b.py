"""Qwen3 30B-A3B: Yang et al. (2025), table 2. The mesh is for v5p of 256 chips.

    flaxformer_lite plan --config=qwen3_30b_a3b --topology=v5p:8x8x4
    flaxformer_lite train --config=qwen3_30b_a3b --workdir=/shared/runs/qwen3_30b_a3b \
        --config.data.path=FOLDER

The paper tells no rates; they are those of mixtral_8x7b, as is the batch.
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
from flaxformer_lite.models import qwen3_moe
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=qwen3_moe.config("30b_a3b", dtype="bfloat16", scan=True, remat="attention"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=151936), length=4096
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
