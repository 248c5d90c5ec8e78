"""Static embeddings: a text's vector is the mean of its tokens' rows in a table.

Those of sentence-transformers (`StaticEmbedding`); models/model2vec.py has those of Model2Vec.

Reference: Reimers and Gurevych, sentence-transformers, `StaticEmbedding` (2025).
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.models.fields import ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.models.skeletons.inputs import ids_of
from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.models.weight_map import Published, build_heads, weight_rows
from flaxformer_lite.nn.modules.embed import TokenEmbed

BASE: ModelFields = dict(
    vocab_size=30522, num_heads=1, mlp_dim=1, mlp="none", norm_at=(), head="none"
)
PRESETS = {"tiny": dict(d_model=64), "base": dict(d_model=256)}
config = partial(build_config, "static_embedding", BASE, PRESETS, "base")


class Model(FamilyModel):
    """A table, called with input_ids [B, T]; pooling the rows of a text is the caller's."""

    skeleton: ClassVar[str] = "embedding"
    heads: ClassVar[tuple[str, ...]] = ("none",)

    def setup(self) -> None:
        self.token_embed = TokenEmbed(build_layers.embed(self.cfg), self.execution)

    def encode(self, input_ids, *, attention_mask=None):
        """Returns the rows of tokens, [B, T, D], padding's too."""
        return self.token_embed(ids_of("input_ids", input_ids, self.cfg.vocab_size))

    def __call__(self, input_ids, *, attention_mask=None) -> Output:
        return Output(last_hidden_state=self.encode(input_ids))


def settle(cfg: ModelConfig, tensors: Mapping[str, np.ndarray]) -> ModelConfig:
    """Takes the sizes from the table, as no config.json has both."""
    rows, width = max(tensors.values(), key=np.ndim).shape
    return dataclasses.replace(cfg, vocab_size=rows, d_model=width)


PUBLISHED = Published(
    model_type="static_embedding",
    names=lambda cfg: weight_rows(("embedding", "token_embed")),
    heads=build_heads("StaticEmbedding", none=()),
    fields={"hidden_dim": "d_model"},
    settle=settle,
)
