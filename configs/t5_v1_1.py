"""T5 1.1 in all sizes: gated GELU, untied logits, no dropout in pretraining (Shazeer 2020).

    flaxformer_lite train --config=t5_v1_1:small --workdir=runs/t5_v1_1 --config.data.path=FOLDER

Sizes: tiny, small (77M), base (248M), large (783M), xl (2.8B), xxl (11B). The recipe is t5_small's.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import t5


def get_config(size: str = "small"):
    config = pages.get_config("t5_small")
    config.model = to_config_dict(
        t5.config(f"v1_1_{size}", dtype="bfloat16", scan=True, remat="dots")
    )
    return config
