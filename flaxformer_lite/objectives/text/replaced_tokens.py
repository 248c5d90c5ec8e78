"""Replaced-token detection.

A small generator fills in masked tokens, and the model detects which tokens are not original.

Reference: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators", sections 2 and 3.2 (arXiv:2003.10555); He, Gao, Chen 2021, "DeBERTaV3: Improving
DeBERTa using ELECTRA-Style Pre-Training with Gradient-Disentangled Embedding Sharing", section 3
(arXiv:2111.09543).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ModelConfig, check_family
from flaxformer_lite.config.rules import ConfigError, NotNegative, OneOf, Probability, Range, Share
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.objectives.auxiliary_model import AuxiliaryModel
from flaxformer_lite.objectives.base import Metric, Objective, score_metric
from flaxformer_lite.objectives.row_plans import NUM_PLANS, RowPlan
from flaxformer_lite.objectives.rows import Example, Rows, Tokenizer
from flaxformer_lite.objectives.sums import LossSums, token_loss
from flaxformer_lite.objectives.text.masked_lm import MaskedLm
from flaxformer_lite.types import Arrays

DETECTED = "real_weights"  # the term of the tokens that the discriminator judges
# Of the masked tokens; the generator's logits of one exist at a time while it draws.
DRAW_CHUNKS = 4
EMBEDDINGS = (  # section 3.2: shared, all but the layer to d_model
    r"^(token_embed|embed/(position|token_types|norm))"
)
TABLES = r"^(token_embed|embed/(position|token_types))/"  # of DeBERTaV3, section 3.3: no norms
SHARINGS = ("joint", "disentangled")
Scale = Annotated[float, Range(1e-9, 1, "be above 0 and at most 1")]


class Detection(flax.struct.PyTreeNode):
    """The input of the loss: the generator's predictions and the discriminator's judgments."""

    projection: DeferredLogits  # the generator's, at the masked positions
    logits: jax.Array  # [B, T], positive where the discriminator finds a token replaced
    replaced: jax.Array  # [B, T] bool


@dataclass(frozen=True, kw_only=True)
class ReplacedTokens(Objective):
    """Minimizes the generator's masked-LM loss plus the discriminator's weighted cross entropy.

    The first is -log p_G(x_t | masked x) over masked t. The second, times `detection_weight`, is
    over all t: whether x_t is original, where the masked tokens are draws from p_G, without
    gradient.

    A draw that happens to be the original token counts as original. The draws invert the cumulative
    distribution at random numbers that come with the examples, so they are functions of seed and
    step; held-out examples have the same each time. The accuracy of always answering "original"
    depends on the generator, so it is a metric, not a baseline.

    The generator has `generator_layers` times the layers; its width, heads and feed-forward are
    `generator_size` times the model's. A workdir is read as the discriminator; `convert
    --auxiliary` writes the generator.

    With `embeddings=joint` (ELECTRA) the two share their embeddings, which both losses pull. With
    `disentangled` (DeBERTaV3) the discriminator's tables are E_D = sg(E_G) + E_delta: those of the
    generator without gradient, plus an offset of its own that starts at zero (equation 5). What is
    written has the sum.
    """

    rate: Share = 0.15  # share of the tokens that the generator may replace
    generator_size: Scale = 0.25  # section 3.2 finds 1/4 to 1/2 best
    generator_layers: Scale = 1.0  # DeBERTaV3: half as many layers, of full size
    embeddings: Annotated[str, OneOf(SHARINGS)] = "joint"
    detection_weight: NotNegative = 50.0
    z_loss: NotNegative = 0.0  # of the generator, as is label_smoothing
    label_smoothing: Probability = 0.0

    head = "pretraining"
    needs = ("cls_id", "sep_id", "mask_id")
    skeletons = ("encoder",)
    num_plans = NUM_PLANS
    shown = (
        score_metric("detection_accuracy", form=".2%"),
        Metric("always_original", "baseline: always original", form=".2%", live=True),
        Metric("detection_loss", unit="nats per token"),
        score_metric("precision", form=".1%"),
        score_metric("recall", form=".1%"),
        score_metric("f1", "F1", form=".1%", live=True),
        Metric("nll", "generator's loss", unit="nats per masked token"),
        score_metric("accuracy", "generator's accuracy", form=".1%"),
    )

    def auxiliary_model(self, model: ModelConfig) -> AuxiliaryModel:
        heads = max(1, round(model.num_heads * self.generator_size))
        generator = dataclasses.replace(
            model,
            head="masked_lm",
            adapter=None,
            num_heads=heads,
            d_model=heads * max(1, round(model.d_model * self.generator_size / heads)),
            mlp_dim=max(1, round(model.mlp_dim * self.generator_size)),
            embedding_size=model.embedding_width,
            encoder_layers=max(1, round(model.encoder_layers * self.generator_layers)),
        )
        if self.embeddings == "disentangled":
            return AuxiliaryModel("generator", generator, offset=TABLES)
        return AuxiliaryModel("generator", generator, shared=EMBEDDINGS)

    def fit_model(self, model: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
        if "discriminator" not in check_family(model).head_modules:
            raise ConfigError(
                f"model.family={model.family!r}: its head 'pretraining' does not judge tokens;"
                " replaced_tokens trains electra and deberta_v2."
            )
        return model

    def plan_rows(
        self,
        offsets: Mapping[str, np.ndarray],
        length: int,
        target_length: int,
        tokenizer: Tokenizer,
        *,
        shift: float = 0.0,
    ) -> RowPlan:
        return self._masking.plan_rows(offsets, length, target_length, tokenizer, shift=shift)

    def make_example(self, records: Rows, index: int, rng: np.random.Generator) -> Example:
        """Builds an example, T = records.length, M = ceil(T * rate).

        inputs: input_ids, masked_ids, segment_ids [T], masked_positions [M], all int32; uniforms
          [M] float32.
        targets: labels [M] int32, weights [M] float32; real_weights [T] float32, 1 except for
          padding.
        """
        example = self._masking.make_example(records, index, rng)
        inputs = example["inputs"]
        targets = example["targets"]
        masked = inputs["input_ids"]
        real = targets["weights"] > 0
        ids = masked.copy()
        ids[inputs["masked_positions"][real]] = targets["labels"][real]
        # Drawn after the masks, so that these equal masked_lm's for the same row.
        uniforms = rng.random(len(real), np.float32)
        return {
            "inputs": inputs | {"input_ids": ids, "masked_ids": masked, "uniforms": uniforms},
            "targets": targets | {DETECTED: (inputs["segment_ids"] > 0).astype(np.float32)},
        }

    def outputs(
        self, model: nn.Module, inputs: Arrays, generator: nn.Module | None = None
    ) -> Detection:
        ids_BT = inputs["input_ids"]
        positions_BM = inputs["masked_positions"]
        segments_BT = inputs["segment_ids"]
        assert generator is not None, "an objective with a second model gets it"
        made = generator.features(
            inputs["masked_ids"], masked_positions=positions_BM, segment_ids=segments_BT
        )
        drawn_BM = draw(jax.lax.stop_gradient(made.projection), inputs["uniforms"])
        # Unused places point at 0, [CLS], which is never masked, and so they replace nothing.
        drawn_BM = jnp.where(positions_BM > 0, drawn_BM, ids_BT[:, :1])
        shown_BT = jnp.put_along_axis(ids_BT, positions_BM, drawn_BM, axis=1, inplace=False)
        logits_BT = model(shown_BT, segment_ids=segments_BT).logits
        return Detection(made.projection, logits_BT.astype(jnp.float32), shown_BT != ids_BT)

    def loss(self, outputs: Detection, targets: Arrays, *, chunks: int) -> LossSums:
        tokens = token_loss(self, outputs, targets, chunks)
        weights_BT = targets[DETECTED]
        replaced_BT = outputs.replaced
        found_BT = outputs.logits > 0
        nll_BT = jax.nn.softplus(jnp.where(replaced_BT, -outputs.logits, outputs.logits))

        def total(x_BT: jax.Array) -> jax.Array:
            return (x_BT.astype(jnp.float32) * weights_BT).sum()

        weight = total(jnp.ones_like(weights_BT))
        flagged = total(found_BT)
        replaced = total(replaced_BT)
        hits = total(found_BT & replaced_BT)
        metrics = {
            "detection_loss": (total(nll_BT), weight),
            "detection_accuracy": (total(found_BT == replaced_BT), weight),
            "always_original": (weight - replaced, weight),
            "precision": (hits, flagged),
            "recall": (hits, replaced),
            "f1": (2 * hits, flagged + replaced),
        }
        return LossSums(
            {**tokens.loss, DETECTED: self.detection_weight * total(nll_BT)},
            {**tokens.weight, DETECTED: weight},
            {**tokens.metrics, **jax.lax.stop_gradient(metrics)},
        )

    @property
    def _masking(self) -> MaskedLm:
        return MaskedLm(rate=self.rate, mask_share=1.0, random_share=0.0)


def draw(projection: DeferredLogits, uniforms_BM: jax.Array, /) -> jax.Array:
    """Draws one token per position from softmax(logits), int32 [B, M].

    It is the first token whose cumulative probability exceeds u.

    A mesh that splits the vocabulary gathers the probabilities of each chunk, as they are added up
    in order.

    Args:
      projection: x [B, M, D].
      uniforms_BM: float32 in [0, 1).
    """
    parts = np.array_split(np.arange(uniforms_BM.shape[1]), min(DRAW_CHUNKS, uniforms_BM.shape[1]))

    def part(x_BMD: jax.Array, uniforms_BM: jax.Array) -> jax.Array:
        mass_BMV = jnp.cumsum(
            jax.nn.softmax(dataclasses.replace(projection, x=x_BMD).logits()), axis=-1
        )
        # Times the last sum, which rounding keeps from being exactly one.
        below_BM = (mass_BMV <= uniforms_BM[..., None] * mass_BMV[..., -1:]).sum(
            -1, dtype=jnp.int32
        )
        return jnp.minimum(below_BM, mass_BMV.shape[-1] - 1)

    drawn = [part(projection.x[:, piece], uniforms_BM[:, piece]) for piece in parts]
    return jnp.concatenate(drawn, axis=1)
