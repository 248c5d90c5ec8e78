"""A family of your own, written outside the package: it loads, saves, generates and trains like
the built-in ones.

    model, params = load_pretrained("path/to/weights", family="examples.parallel_llama:Model")
    flaxformer_lite generate --model path/to/weights --prompt "To be"
    --family examples.parallel_llama:Model
    flaxformer_lite train --config=gpt2_tiny --workdir=runs/mine
    --config.train.init_from=path/to/weights --config.model.family=examples.parallel_llama:Model

It is Llama with attention and feed-forward in parallel after one norm. Its config.json has a
model_type and a field that no other family has.

Reference: Wang and Komatsuzaki, "GPT-J-6B" (2021), for the parallel layers.
"""

import dataclasses
from functools import partial

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.files.read import Json
from flaxformer_lite.models import llama
from flaxformer_lite.models.common import llama_like
from flaxformer_lite.models.fields import Fields, ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.weight_map import add_prefix, weight_rows

BASE = llama.BASE | dict(residual="parallel_shared")
PRESETS = {"tiny": llama.PRESETS["tiny"], "1b": llama.PRESETS["1b"]}
config = partial(build_config, f"{__name__}:Model", BASE, PRESETS, "1b")


class Model(llama.Model):
    heads = ("lm", "none")


LAYER = tuple(row for row in llama_like.LAYER if row.name != "input_layernorm")
LAYER = tuple(row for row in LAYER if row.name != "post_attention_layernorm")
LAYER += weight_rows(("shared_norm", "attention_in_norm"))
BODY = llama_like.ENDS + add_prefix("layers.{i}", "decoder/layer_{i}", LAYER)


def read(fields: Fields) -> ModelFields:
    return llama_like.read_heads(fields) | {"logit_multiplier": fields.get("logit_multiplier", 1.0)}


def write(cfg: ModelConfig) -> Json:
    return llama_like.write_heads(cfg) | {"logit_multiplier": cfg.logit_multiplier}


PUBLISHED = dataclasses.replace(
    llama.PUBLISHED,
    model_type="parallel_llama",
    names=lambda cfg: BODY,
    heads=llama_like.heads("ParallelLlama", only=("lm", "none")),
    fixed={},
    read=read,
    write=write,
)
