"""GPT-2 medium, 355M parameters: Radford et al. (2019), table 2.

    flaxformer_lite train --config=gpt2_medium --workdir=runs/gpt2_medium --config.data.path=FOLDER

The recipe is gpt2_small's with a smaller learning rate; layers are scanned so that compile time
does not grow with depth.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import gpt2


def get_config():
    config = pages.get_config("gpt2_small")
    config.model = to_config_dict(
        gpt2.config(
            "medium", vocab_size=50304, dropout=0.0, dtype="bfloat16", scan=True, remat="full"
        )
    )
    config.optimizer.learning_rate = 0.0003
    return config
