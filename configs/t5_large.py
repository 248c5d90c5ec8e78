"""T5 large, 738M parameters: Raffel et al. (2020), sections 3.1.2 and 3.7.

    flaxformer_lite train --config=t5_large --workdir=runs/t5_large --config.data.path=FOLDER

The recipe is t5_small's; layers are scanned and rematerialised.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import t5


def get_config():
    config = pages.get_config("t5_small")
    config.model = to_config_dict(t5.config("large", dtype="bfloat16", scan=True, remat="dots"))
    return config
