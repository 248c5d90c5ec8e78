"""Llama 2 70B, with a mesh for v5p-512: a grid of 4x8x8, 256 chips.

    flaxformer_lite plan --config=llama_70b --topology=v5p-512
    flaxformer_lite train --config=llama_70b --workdir=/shared/runs/llama_70b \
        --config.data.path=FOLDER

The sizes are those of Touvron et al. (2023), table 1 and section 2.2. The recipe is llama_7b's with
the paper's length, 4096, and peak, 1.5e-4: 4M tokens per step.
docs/plans/ says what it needs.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import llama


def get_config():
    config = pages.get_config("llama_7b")
    config.model = to_config_dict(
        llama.config("llama2_70b", dtype="bfloat16", scan=True, remat="attention")
    )
    config.data.length = 4096
    config.optimizer.learning_rate = 1.5e-4
    config.train.update(batch_size=1024, accumulate=1)
    # 64 parts of the width are too thin: the compiler then reduces whole gradients
    config.mesh.fsdp = 32
    return config
