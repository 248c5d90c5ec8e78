"""Switch Transformers base with 128 experts, 7B parameters: Fedus et al. (2021), table 9.

    flaxformer_lite train --config=switch_base --workdir=runs/switch_base --config.data.path=FOLDER

`--config=switch_base:8` has 8 experts instead.

The recipe is t5_small's, as the paper's is T5's; experts have room for 1.25 times their share of a
row's tokens in training, and for twice at inference.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import switch_transformers


def get_config(experts: str = "128"):
    config = pages.get_config("t5_small")
    config.model = to_config_dict(
        switch_transformers.config(f"base_{experts}", dtype="bfloat16", scan=True, remat="full")
    )
    config.mesh.expert = 8
    return config
