"""Word2vec: two vectors per word, one as a word and one as a context.

Nothing lies between the two tables.

Reference: Mikolov, Chen, Corrado, Dean, "Efficient Estimation of Word Representations in Vector
Space" (2013), section 3; Mikolov, Sutskever, Chen, Corrado, Dean, "Distributed Representations of
Words and Phrases and their Compositionality" (2013).
"""

from functools import partial
from typing import ClassVar

import jax

from flaxformer_lite.models.fields import ModelFields
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.models.skeletons.inputs import ids_of
from flaxformer_lite.models.skeletons.outputs import Features, Output
from flaxformer_lite.nn.modules.embed import TokenEmbed
from flaxformer_lite.nn.modules.heads import VocabHead

BASE: ModelFields = dict(
    vocab_size=30000,
    num_heads=1,
    mlp_dim=1,
    mlp="none",
    norm_at=(),
    tie_embeddings=False,
    init_stddev=0.01,
)
PRESETS = {"tiny": dict(d_model=64), "small": dict(d_model=100), "base": dict(d_model=300)}
config = partial(build_config, "word2vec", BASE, PRESETS, "small")


class Model(FamilyModel):
    """Two tables, called with input_ids [B, T].

    `token_embed` holds the vectors of words, `lm_head` those of contexts.

    The logits of a word are the dot products of its vector with those of all contexts.
    """

    skeleton: ClassVar[str] = "embedding"
    heads: ClassVar[tuple[str, ...]] = ("lm",)

    def setup(self) -> None:
        self.token_embed = TokenEmbed(build_layers.embed(self.cfg), self.execution)
        self.lm_head = VocabHead(build_layers.vocab(self.cfg), self.execution)

    def features(self, input_ids: jax.Array) -> Features:
        """Returns the words' vectors, and the context table, from which losses read a few rows."""
        x_BTD = self.token_embed(ids_of("input_ids", input_ids, self.cfg.vocab_size))
        return Features(self.lm_head(x_BTD, self.token_embed.embedding))

    def __call__(self, input_ids: jax.Array) -> Output:
        projection = self.features(input_ids).projection
        return Output(last_hidden_state=projection.x, logits=projection.logits())
