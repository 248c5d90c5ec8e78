"""Llama 3 8B with rows of 8192 tokens, and a mesh for v6e:16x16, 256 chips.

    flaxformer_lite plan --config=llama3_8b --topology=v6e:16x16
    flaxformer_lite train --config=llama3_8b --workdir=/shared/runs/llama3_8b \
        --config.data.path=FOLDER

The sizes, the vocabulary and the peak of the learning rate are those of Grattafiori et al. (2024),
table 3. Four rows per chip are what MaxText publishes figures for.
"""

from flaxformer_lite import pages
from flaxformer_lite.config import to_config_dict
from flaxformer_lite.models import llama


def get_config():
    config = pages.get_config("llama_7b")
    config.model = to_config_dict(
        llama.config("llama3_8b", dtype="bfloat16", scan=True, remat="attention")
    )
    config.data.length = 8192
    config.data.tokenizer.vocab_size = 128256
    config.optimizer.learning_rate = 3e-4
    config.train.update(batch_size=1024, accumulate=1)
    return config
