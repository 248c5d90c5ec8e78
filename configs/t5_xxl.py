"""T5 1.1 xxl, 11B parameters, with a mesh for v5p-128, 64 chips.

    flaxformer_lite plan --config=t5_xxl --topology=v5p-128
    flaxformer_lite train --config=t5_xxl --workdir=/shared/runs/t5_xxl --config.data.path=FOLDER

The model of Shazeer (2020), and the recipe of Raffel et al. (2020) as in t5_small, with the batches
of 2048 sequences of later T5s. docs/plans/ says what it needs.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import t5


def get_config():
    config = pages.get_config("t5_small")
    config.model = to_config_dict(
        t5.config("v1_1_xxl", dtype="bfloat16", scan=True, remat="attention+qkv+out+mlp")
    )
    config.train.update(batch_size=2048, accumulate=1)
    config.mesh.fsdp = 16
    return config
