"""Llama 2 7B: Touvron et al. (2023), table 1 and section 2.2. The mesh is for v5e:16x16, 256 chips.

    flaxformer_lite plan --config=llama_7b --topology=v5e:16x16
    flaxformer_lite train --config=llama_7b --workdir=/shared/runs/llama_7b \
        --config.data.path=FOLDER

The paper: sequences of 4096 (here 2048, as in the first Llama), 4M tokens a step, peak 3e-4, cosine
  to a tenth, 2000
steps of warm-up, 2 trillion tokens. docs/plans/ says what it needs.
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
from flaxformer_lite.models import llama
from flaxformer_lite.objectives.text.causal_lm import CausalLm


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=llama.config("7b", dtype="bfloat16", scan=True, remat="attention"),
            objective=CausalLm(),
            data=DataConfig(
                corpus="stdlib_code", tokenizer=TokenizerConfig(vocab_size=32000), length=2048
            ),
            optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=2000),
            train=TrainConfig(
                steps=500_000,
                batch_size=2048,
                log_every=10,
                eval_every=1000,
                checkpoint_every=1000,
            ),
            mesh=MeshConfig(data=-1, fsdp=16, shard_over_data=True),
        )
    )
