"""T5 base, 223M parameters: Raffel et al. (2020), sections 3.1.2 and 3.7.

    python train.py --config=configs/t5_base.py --workdir=runs/t5_base --config.data.path=FOLDER

The recipe is t5_small's; layers are scanned and rematerialised.
"""

from configs import t5_small
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import t5


def get_config():
    config = t5_small.get_config()
    config.model = to_config_dict(t5.config("base", dtype="bfloat16", scan=True, remat="dots"))
    return config
