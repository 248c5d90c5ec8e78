"""BERT large, 335M parameters: Devlin et al. (2019), section 3.

    flaxformer_lite train --config=bert_large --workdir=runs/bert_large --config.data.path=FOLDER

The recipe is bert_base's; layers are scanned and rematerialised.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import bert


def get_config():
    config = pages.get_config("bert_base")
    config.model = to_config_dict(
        bert.config("large", vocab_size=30592, dtype="bfloat16", scan=True, remat="dots")
    )
    return config
