"""Direct preference optimization of a tuned decoder, on your table of preferred answers.

    flaxformer_lite train --config=dpo --workdir=runs/preferred --config.train.init_from=DIR \
        --config.data.path=pairs.jsonl

DIR is a run of configs/instruct.py, or a Llama, Qwen, ... that transformers saved; model,
tokenizer, chat template and sizes come from it, and its weights are the reference. Rows have
prompt, chosen and rejected, each a text or messages. `data.length` holds both answers, each with
the prompt. Learning rate and beta are those of Rafailov et al. (2023), appendix B.
"""

from flaxformer_lite.config import (
    DataConfig,
    ExperimentConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    to_config_dict,
)
from flaxformer_lite.models import llama
from flaxformer_lite.objectives.tables.dpo import Dpo


def get_config():
    return to_config_dict(
        ExperimentConfig(
            model=llama.config("tiny", vocab_size=4096),
            objective=Dpo(),
            data=DataConfig(
                tokenizer=TokenizerConfig(vocab_size=4096), length=512, eval_fraction=0.1
            ),
            optimizer=OptimizerConfig(
                learning_rate=1e-6,
                schedule="constant",
                warmup_steps=0,
                warmup_share=0.1,
                weight_decay=0.0,
            ),
            train=TrainConfig(
                steps=300,
                batch_size=16,
                log_every=20,
                eval_every=100,
                eval_batches=0,
                checkpoint_every=100,
            ),
        )
    )
