"""T5 1.1 xl, 2.8B parameters, with a mesh for v5e:16x16, 256 chips.

    flaxformer_lite plan --config=t5_xl --topology=v5e:16x16
    flaxformer_lite train --config=t5_xl --workdir=/shared/runs/t5_xl --config.data.path=FOLDER

The model of Shazeer (2020), and the recipe of Raffel et al. (2020) as in t5_small, with the batches
of 2048 sequences of later T5s. docs/plans/ says what it needs.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import t5


def get_config():
    config = pages.get_config("t5_small")
    config.model = to_config_dict(t5.config("v1_1_xl", dtype="bfloat16", scan=True, remat="full"))
    config.train.update(batch_size=2048, accumulate=1)
    config.mesh.fsdp = 8
    return config
