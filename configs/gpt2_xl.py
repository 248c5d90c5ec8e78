"""GPT-2 xl, 1558M parameters: Radford et al. (2019), table 2. The mesh is for v5e:16x16, 256 chips.

    flaxformer_lite plan --config=gpt2_xl --topology=v5e:16x16
    flaxformer_lite train --config=gpt2_xl --workdir=runs/gpt2_xl --config.data.path=FOLDER

The recipe is gpt2_small's with a smaller learning rate; layers are scanned so that compile time
does not grow with depth. docs/plans/ says what it needs; on a smaller machine set mesh.fsdp and
train.accumulate.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import gpt2


def get_config():
    config = pages.get_config("gpt2_small")
    config.model = to_config_dict(
        gpt2.config("xl", vocab_size=50304, dropout=0.0, dtype="bfloat16", scan=True, remat="full")
    )
    config.optimizer.learning_rate = 0.0002
    config.train.update(batch_size=512, accumulate=1)
    config.mesh.fsdp = 64
    return config
