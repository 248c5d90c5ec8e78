"""ELECTRA: BERT trained to detect which tokens a small generator has replaced.

The small size has narrow embeddings.

Reference: Clark et al., "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators" (2020), section 2.
"""

from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax

from flaxformer_lite.config import Execution, ModelConfig
from flaxformer_lite.models.common import bert_like
from flaxformer_lite.models.presets import build_config
from flaxformer_lite.models.skeletons.encoder import EncoderModel
from flaxformer_lite.models.skeletons.outputs import Features, Output
from flaxformer_lite.models.weight_map import Published, build_heads, weight_rows
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.modules.einsum import Einsum

BASE = bert_like.BASE | dict(bias_at=("embed", *bert_like.BASE["bias_at"]), head="masked_lm")
PRESETS = {  # the discriminators' sizes, appendix A
    "tiny": dict(d_model=128, num_heads=2, mlp_dim=512, encoder_layers=2, embedding_size=64),
    "small": dict(d_model=256, num_heads=4, mlp_dim=1024, encoder_layers=12, embedding_size=128),
    "base": bert_like.PRESETS["base"],
    "large": bert_like.PRESETS["large"],
}
config = partial(build_config, "electra", BASE, PRESETS, "base")


class Discriminator(nn.Module):
    """One logit per token, positive if the token was replaced (section 2)."""

    cfg: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        cfg = self.cfg
        sizes = {"D": self.cfg.d_model, "A": self.cfg.d_model, "C": 1}
        how: dict[str, Any] = {"initial": cfg.initial, "execution": self.execution}
        h_BTA = ACTIVATIONS[cfg.activation](
            Einsum("BTD,DA->BTA", sizes, bias=True, **how, name="dense")(x_BTD)
        )
        return Einsum("BTA,AC->BTC", sizes, bias=True, **how, name="output")(h_BTA)[..., 0]


class Model(EncoderModel):
    """ELECTRA's generator (`masked_lm`) or discriminator (`pretraining`, logits [B, T]).

    Other heads are on the discriminator.
    """

    heads = ("none", "masked_lm", "causal_lm", "pretraining", *bert_like.CLASSIFIERS)
    vocab_heads: ClassVar[tuple[str, ...]] = ("masked_lm", "causal_lm")
    pooled = ("sequence_classification", "multiple_choice")
    pooler_activation = "gelu"
    masked_lm_activation = "gelu"
    head_modules = ("discriminator",)
    detector: ClassVar[type[nn.Module]] = Discriminator

    def setup_head(self) -> None:
        super().setup_head()
        self.discriminator = self.detector(self.cfg, self.execution)

    def features(self, input_ids=None, **inputs) -> Features:
        if self.cfg.head == "pretraining":
            raise ValueError(
                f"{self.cfg.family}'s head='pretraining' judges tokens and predicts none: call the"
                " model for logits [B, T], or train a generator, head='masked_lm'."
            )
        return super().features(input_ids, **inputs)

    def forward(self, input_ids, **inputs) -> Output:
        if self.cfg.head != "pretraining":
            return super().forward(input_ids, **inputs)
        x_BTD = self.encode(input_ids, **inputs)
        return Output(last_hidden_state=x_BTD, logits=self.discriminator(x_BTD))


PROJECT = weight_rows(("embeddings_project", "embed/project"))
PREDICTIONS = weight_rows(
    ("generator_predictions.dense", "masked_lm/dense"),
    ("generator_predictions.LayerNorm", "masked_lm/norm"),
    ("generator_lm_head", "masked_lm/vocab"),
)
DISCRIMINATOR = weight_rows(
    ("discriminator_predictions.dense", "discriminator/dense"),
    ("discriminator_predictions.dense_prediction", "discriminator/output"),
)
FIRST_TOKEN = weight_rows(
    ("classifier.dense", "pooler/dense"), ("classifier.out_proj", "classifier/dense")
)
SUMMARY = weight_rows(("sequence_summary.summary", "pooler/dense"))
PUBLISHED = Published(
    model_type="electra",
    defaults=dict(
        embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024
    ),
    prefix="electra.",
    names=lambda cfg: bert_like.BODY + PROJECT,
    heads=build_heads(
        "Electra",
        none=(),
        masked_lm=PREDICTIONS,
        causal_lm=PREDICTIONS,
        pretraining=DISCRIMINATOR,
        **bert_like.CLASSIFIERS
        | dict(sequence_classification=FIRST_TOKEN, multiple_choice=bert_like.CLASSIFIER + SUMMARY),
    ),
    fields=bert_like.FIELDS | {"embedding_size": "embedding_size"},
    fixed=bert_like.FIXED
    | {
        "summary_type": "first",
        "summary_activation": "gelu",
        "summary_use_proj": True,
    },
    write=lambda cfg: {"embedding_size": cfg.embedding_width},
    ignored=bert_like.BUFFERS,
)
