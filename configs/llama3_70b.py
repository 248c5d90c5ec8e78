"""Llama 3 70B with rows of 8192 tokens, and a mesh for v6e:16x16, 256 chips.

    flaxformer_lite plan --config=llama3_70b --topology=v6e:16x16
    flaxformer_lite train --config=llama3_70b --workdir=/shared/runs/llama3_70b \
        --config.data.path=FOLDER

The sizes, the vocabulary and the peak of the learning rate are those of Grattafiori et al. (2024),
table 3. Two rows per chip are what MaxText publishes figures for.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import llama


def get_config():
    config = pages.get_config("llama3_8b")
    config.model = to_config_dict(
        llama.config("llama3_70b", dtype="bfloat16", scan=True, remat="full")
    )
    config.optimizer.learning_rate = 1.5e-4
    config.train.update(batch_size=512, accumulate=2)
    config.mesh.fsdp = 16
    return config
