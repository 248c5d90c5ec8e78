"""The encoder skeleton: embeddings, a bidirectional stack, and the heads of encoders."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.call_with_intermediates import call_inside
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.models.skeletons.inputs import (
    ids_of,
    position_ids_of,
    read_ids,
    rows_of,
    visibility_mask,
)
from flaxformer_lite.models.skeletons.outputs import Features, Output, span_logits
from flaxformer_lite.models.skeletons.packed_rows import PackedRows
from flaxformer_lite.nn.functions.losses import DeferredLogits, gather_positions
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.embed import EmbedInputs, TokenEmbed
from flaxformer_lite.nn.modules.heads import Classifier, MaskedLmHead, Pooler
from flaxformer_lite.nn.modules.stack import Stack


class EncoderModel(FamilyModel):
    """An encoder with the head that `cfg.head` names.

    Families set class variables where their heads differ. Attention is bidirectional, except with
    the head `causal_lm`, a decoder without a cache that predicts the next token. Call it with
    input_ids [B, T] (multiple choice: [B, C, T]), or inputs_embeds [B, T, E] in place of the token
    table's vectors, and optionally attention_mask [B, T] (nonzero is kept), token_type_ids [B, T],
    position_ids [B, T], segment_ids [B, T] (packed documents, 0 is padding), packing (instead of
    segment_ids: the rows in which the tokens of all examples are computed, see `PackedRows`) and
    masked_positions [B, M] (the masked-LM head then computes only these). For output_attentions and
    output_hidden_states see `Output`.
    """

    skeleton: ClassVar[str] = "encoder"
    heads: ClassVar[tuple[str, ...]] = (
        "none",
        "masked_lm",
        "causal_lm",
        "pretraining",
        "next_sentence",
        "sequence_classification",
        "token_classification",
        "question_answering",
        "multiple_choice",
    )
    vocab_heads: ClassVar[tuple[str, ...]] = ("masked_lm", "causal_lm", "pretraining")
    pooled: ClassVar[tuple[str, ...]] = (
        "none",
        "pretraining",
        "next_sentence",
        "sequence_classification",
        "multiple_choice",
    )
    padded_heads: ClassVar[tuple[str, ...]] = ()  # those that read the vectors of padding
    zero_padding: ClassVar[bool] = False  # whether embeddings are zero where attention_mask is
    # values of `classifier_pooling` that the family computes
    classifier_poolings: ClassVar[tuple[str, ...]] = ("first",)
    bare_heads: ClassVar[tuple[str, ...]] = ()  # those with nothing but the vocabulary's weights
    pooler_activation: ClassVar[str] = "tanh"  # empty: the config's
    masked_lm_activation: ClassVar[str] = ""  # empty: the config's
    projects_embeddings: ClassVar[bool] = False  # to d_model, even where they have its width
    frozen_padding: ClassVar[tuple[str, ...]] = ("tokens",)
    # the field of Output for the pretraining task on pairs
    pair_logits: ClassVar[str] = "seq_relationship_logits"

    def setup(self) -> None:
        cfg = self.cfg
        run = self.execution
        embed = build_layers.embed(
            cfg,
            frozen=self.frozen_padding,
            padded_heads=self.padded_heads,
            always_projects=self.projects_embeddings,
        )
        self.token_embed = TokenEmbed(embed, run)
        self.embed = EmbedInputs(embed, run)
        self.encoder = Stack(
            build_layers.stack(cfg, "encoder"), run, causal=cfg.head == "causal_lm", embedded=True
        )
        self.setup_head()

    def setup_head(self):
        """Makes the modules of `cfg.head`."""
        cfg = self.cfg
        run = self.execution
        if cfg.head in self.pooled:
            self.pooler = Pooler(self.pooler_activation or cfg.activation, cfg.initial, run)
        if cfg.head in self.vocab_heads:
            activation = self.masked_lm_activation or cfg.activation
            self.masked_lm = MaskedLmHead(build_layers.vocab(cfg), activation, cfg.norm_config, run)
        if cfg.head in ("pretraining", "next_sentence"):
            self.next_sentence = Classifier(2, True, cfg.initial, run)
        elif cfg.head not in ("none", "masked_lm", "causal_lm"):
            self.classifier = build_layers.classifier(cfg, run)

    def positions(self, input_ids, position_ids, attention_mask, segment_ids) -> jax.Array:
        """Returns position ids [B, T] or [1, T]."""
        return position_ids_of(self.cfg, input_ids, position_ids, attention_mask, segment_ids)

    def embed_tokens(self, input_ids, attention_mask, segment_ids) -> jax.Array:
        """Returns the vectors of tokens, [B, T, E]; inputs_embeds stands in place of them."""
        return self.token_embed(input_ids)

    def summarise(self, x_BTD: jax.Array, attention_mask_BT: jax.Array | None) -> jax.Array:
        """Returns one vector per sequence, [B, D]."""
        return self.pooler(x_BTD)

    def classify(self, x: jax.Array) -> jax.Array:
        """Computes logits from vectors of sequences [B, D] or of tokens [B, T, D]."""
        return self.classifier(x)

    def project(self, x_BTD: jax.Array) -> DeferredLogits:
        """Returns deferred logits [B, T, V] of the last hidden state."""
        return self.masked_lm(x_BTD, self.token_embed.embedding)

    def encode(
        self,
        input_ids=None,
        *,
        inputs_embeds=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        segment_ids=None,
        packing=None,
    ) -> jax.Array:
        """Returns the last hidden state, [B, T, D].

        With `packing`, padding is not computed, and is zero.
        """
        input_ids = read_ids(self.cfg, input_ids, inputs_embeds, attention_mask)
        attention_mask = rows_of("attention_mask", attention_mask, input_ids)
        segment_ids = rows_of("segment_ids", segment_ids, input_ids)
        if token_type_ids is not None and self.cfg.type_vocab_size:
            token_type_ids = rows_of("token_type_ids", token_type_ids, input_ids, one=True)
            token_type_ids = ids_of("token_type_ids", token_type_ids, self.cfg.type_vocab_size)
        positions_BT = self.positions(input_ids, position_ids, attention_mask, segment_ids)
        packed = None
        if packing is not None:
            packed = PackedRows(packing, input_ids.shape, inputs_embeds)
            segment_ids = packed.segments(attention_mask)
            attention_mask = None
            input_ids = packed.pack(input_ids)
            positions_BT = packed.pack(positions_BT)
            token_type_ids = packed.pack(token_type_ids)
        if inputs_embeds is not None:
            x_BTE = self.place_vectors(inputs_embeds, "encoder", self.token_embed)
        else:
            x_BTE = self.embed_tokens(input_ids, attention_mask, segment_ids)
        x_BTD = self.embed(x_BTE, positions_BT, token_type_ids)
        if self.zero_padding and attention_mask is not None:
            x_BTD = jnp.where((attention_mask != 0)[..., None], x_BTD, 0)
        context = Context(mask=visibility_mask(attention_mask, segment_ids, None))
        x_BTD = self.encoder(x_BTD, positions_BT, context)
        if packed is not None:
            x_BTD = packed.unpack(x_BTD)
        return x_BTD

    def features(self, input_ids=None, *, masked_positions=None, **inputs) -> Features:
        """Returns hidden states at `masked_positions` (or all) with the vocabulary's weights.

        They serve pretraining losses.
        """
        return self._features(self.encode(input_ids, **inputs), masked_positions)

    def _features(self, x_BTD: jax.Array, masked_positions) -> Features:
        kept = x_BTD
        if masked_positions is not None:
            kept = gather_positions(x_BTD, masked_positions)
        pair = None
        if self.cfg.head == "pretraining":
            pair = self.next_sentence(self.pooler(x_BTD))
        return Features(self.project(kept), pair)

    def __call__(
        self,
        input_ids=None,
        *,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        **inputs,
    ) -> Output:
        if output_attentions or output_hidden_states:
            return call_inside(self, output_attentions, output_hidden_states, input_ids, **inputs)
        return self.forward(input_ids, **inputs)

    def forward(self, input_ids, *, masked_positions=None, **inputs) -> Output:
        """Computes the output with the fields of the head."""
        head = self.cfg.head
        if head == "multiple_choice":
            return self._choose(input_ids, inputs)
        x_BTD = self.encode(input_ids, **inputs)
        output = Output(last_hidden_state=x_BTD)
        if head in ("masked_lm", "causal_lm", "pretraining"):
            features = self._features(x_BTD, masked_positions)
            logits = features.projection.logits()
            if head != "pretraining":
                return output.replace(logits=logits)
            pair = {self.pair_logits: features.next_sentence_logits}
            return output.replace(prediction_logits=logits, **pair)
        if head == "token_classification":
            return output.replace(logits=self.classify(x_BTD))
        if head == "question_answering":
            return output.replace(**span_logits(self.classify(x_BTD)))
        if head == "sequence_classification":
            summary = self.summarise(x_BTD, inputs.get("attention_mask"))
            return output.replace(logits=self.classify(summary))
        if head not in self.pooled:
            return output
        pooled_BD = self.pooler(x_BTD)
        output = output.replace(pooler_output=pooled_BD)
        if head == "none":
            return output
        return output.replace(logits=self.next_sentence(pooled_BD))

    def _choose(self, input_ids, inputs: dict) -> Output:
        vectors = inputs.pop("inputs_embeds", None)
        input_ids = read_ids(self.cfg, input_ids, vectors, axes="[batch, choices, length]")
        batch, choices, length = input_ids.shape
        packing = inputs.pop("packing", None)
        flat = {}
        for name, x in inputs.items():
            x = rows_of(name, x, input_ids)
            flat[name] = None if x is None else x.reshape(batch * choices, length)
        if vectors is None:
            flat["input_ids"] = input_ids.reshape(batch * choices, length)
        else:
            flat["inputs_embeds"] = jnp.reshape(vectors, (batch * choices, length, -1))
        x_BTD = self.encode(packing=packing, **flat)
        summary = self.summarise(x_BTD, flat.get("attention_mask"))
        logits_BC = self.classify(summary).reshape(batch, choices)
        return Output(last_hidden_state=x_BTD, logits=logits_BC)
