"""The decoder-only skeleton: embeddings, a causal stack, and a head."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.call_with_intermediates import call_inside
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.models.skeletons.inputs import (
    ids_of,
    last_token,
    place_slots,
    position_ids_of,
    read_ids,
    rows_of,
    visibility_mask,
)
from flaxformer_lite.models.skeletons.outputs import Features, Output, span_logits
from flaxformer_lite.models.skeletons.packed_rows import PackedRows
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.embedding import positions_from_mask, positions_in_segments
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.embed import EmbedInputs, TokenEmbed
from flaxformer_lite.nn.modules.heads import VocabHead
from flaxformer_lite.nn.modules.stack import Stack


class DecoderModel(FamilyModel):
    """A causal language model.

    Call it with input_ids [B, T], or inputs_embeds [B, T, E] in place of the token table's vectors,
    and optionally attention_mask [B, T] (nonzero is kept), position_ids [B, T] (by default counted
    over kept tokens), token_type_ids [B, T] (GPT-2, GPT-Neo and GPT-J: ids of tokens to add the
    vectors of), segment_ids [B, T] (packed documents, 0 is padding) and prefix_mask [B, T]
    (nonzero: visible to all, the prefix of a prefix LM). With a cache (`init_cache`), returned
    updated in `Output.cache`, the T tokens continue where the last call ended, or at slot
    cache_index; attention_mask, segment_ids and prefix_mask are then [B, S] over the slots of the
    cache, at least up to the last slot of this call. Tokens that exceed the cache are refused; if
    cache_index is traced, the output is NaN instead. For output_attentions and
    output_hidden_states see `Output`.
    """

    skeleton: ClassVar[str] = "decoder"
    heads: ClassVar[tuple[str, ...]] = (
        "lm",
        "sequence_classification",
        "token_classification",
        "question_answering",
        "none",
    )
    # whether tokens are normalized before positions are added
    norms_tokens_first: ClassVar[bool] = False
    types_are_tokens: ClassVar[bool] = False  # whether token types are looked up in the token table

    def setup(self) -> None:
        cfg = self.cfg
        run = self.execution
        self.token_embed = TokenEmbed(build_layers.embed(cfg, frozen=self.frozen_padding), run)
        inputs = build_layers.embed(cfg, self.inner_width, norm_first=self.norms_tokens_first)
        self.embed = EmbedInputs(inputs, run)
        self.decoder = Stack(build_layers.stack(cfg, "decoder"), run, causal=True, embedded=True)
        if cfg.head == "lm":
            self.lm_head = VocabHead(build_layers.vocab(cfg), run)
        elif cfg.head != "none":
            bias = cfg.head != "sequence_classification" or "head" in cfg.bias_at
            self.classifier = build_layers.classifier(cfg, run, bias=bias)

    @property
    def inner_width(self) -> int:
        """The width of the vectors that positions are added to."""
        return self.cfg.embedding_width

    def tokens(self, input_ids, inputs_embeds=None) -> jax.Array:
        """Looks up token vectors, [B, T, D] or, with a factorized embedding, [B, T, E].

        Vectors that are given take their place.
        """
        if inputs_embeds is not None:
            return self.place_vectors(inputs_embeds, "decoder", self.token_embed)
        return self.token_embed(input_ids)

    def decode(
        self,
        input_ids=None,
        *,
        inputs_embeds=None,
        attention_mask=None,
        position_ids=None,
        token_type_ids=None,
        segment_ids=None,
        prefix_mask=None,
        packing=None,
        cache=None,
        cache_index=None,
    ) -> tuple[jax.Array, list | None]:
        """Returns the last hidden state [B, T, D], and the updated caches if any were passed.

        With `packing` padding is not computed, and zero; there is no cache and no prefix then.
        """
        input_ids = read_ids(self.cfg, input_ids, inputs_embeds)
        slots, (attention_mask, segment_ids, prefix_mask) = place_slots(
            input_ids,
            cache,
            cache_index,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            prefix_mask=prefix_mask,
        )
        if (
            self.cfg.head == "question_answering"
            and position_ids is None
            and attention_mask is not None
            and segment_ids is None
        ):
            position_ids = self.positions_with_padding(attention_mask)
        positions_BT = position_ids_of(
            self.cfg,
            input_ids,
            position_ids,
            attention_mask,
            segment_ids,
            skip_padding=True,
            slots=slots,
        )
        packed = None
        if packing is not None:
            packed = PackedRows(packing, input_ids.shape, inputs_embeds)
            segment_ids = packed.segments(attention_mask)
            attention_mask = None
            input_ids = packed.pack(input_ids)
            positions_BT = packed.pack(positions_BT)
            token_type_ids = packed.pack(token_type_ids)
        structure = masks.causal()
        beyond = None
        if prefix_mask is not None:
            structure = structure | masks.prefix(prefix_mask)
            if self.cfg.bidirectional_prompt:  # PaliGemma 2 sees its prompt past windows, too
                beyond = masks.segments(jnp.asarray(prefix_mask).astype(jnp.int32))
        mask = visibility_mask(attention_mask, segment_ids, None, structure=structure)
        context = Context(mask=mask, beyond=beyond, structured=True)
        if attention_mask is not None and segment_ids is None:
            context = context.replace(columns_BS=positions_from_mask(attention_mask))
        if segment_ids is not None and cache is not None and not self.cfg.position.by_difference:
            context = context.replace(columns_BS=positions_in_segments(segment_ids))
        x_BTD = self.tokens(input_ids, inputs_embeds)
        if token_type_ids is not None:
            if not self.types_are_tokens:
                raise ValueError(
                    f"token_type_ids: {self.cfg.family} has no token types; leave it out."
                )
            token_type_ids = rows_of("token_type_ids", token_type_ids, input_ids)
            x_BTD += self.tokens(ids_of("token_type_ids", token_type_ids, self.cfg.vocab_size))
        x_BTD = slots.check(self.embed(x_BTD, positions_BT, None))
        context = self.add_inputs(context, input_ids, x_BTD)
        out = self.decoder(x_BTD, positions_BT, slots.in_context(context), cache)
        if packed is not None:
            out = packed.unpack(out)
        if cache is None:
            return out, None
        return out

    @nn.nowrap
    def add_inputs(self, context: Context, input_ids: jax.Array, x_BTD: jax.Array) -> Context:
        """Returns the context with what layers read beside the stream, by default nothing."""
        return context

    def encode(self, input_ids=None, **inputs) -> jax.Array:
        """Returns the last hidden state, [B, T, D], as encoders do."""
        return self.decode(input_ids, **inputs)[0]

    def positions_with_padding(self, attention_mask) -> jax.Array:
        """Returns positions that continue in the padding after a text, as transformers counts them.

        Where an answer starts and ends is a softmax over all columns, with the padding.
        """
        columns_1T = jnp.arange(attention_mask.shape[1], dtype=jnp.int32)[None]
        first_B1 = jnp.argmax(attention_mask.astype(bool), axis=1).astype(jnp.int32)[:, None]
        return jnp.maximum(columns_1T - first_B1, 0)

    def project(self, x_BTD: jax.Array) -> DeferredLogits:
        """Returns deferred logits [B, T, V] of the decoder's last hidden state."""
        return self.lm_head(x_BTD, self.token_embed.embedding)

    def classify(self, x: jax.Array) -> jax.Array:
        """Computes logits from vectors of sequences [B, D] or of tokens [B, T, D]."""
        return self.classifier(x)

    def features(self, input_ids=None, **inputs) -> Features:
        """Returns hidden states with the vocabulary's weights, for losses without whole logits."""
        x_BTD, _ = self.decode(input_ids, **inputs)
        return Features(self.project(x_BTD))

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
        x_BTD, cache = self.decode(input_ids, **inputs)
        output = Output(last_hidden_state=x_BTD, cache=cache)
        vectors = inputs.get("inputs_embeds")
        if vectors is not None:
            input_ids = read_ids(self.cfg, None, vectors, inputs.get("attention_mask"))
        return output.replace(**self.on_top(x_BTD, input_ids))

    def on_top(self, x_BTD: jax.Array, input_ids) -> dict[str, jax.Array]:
        """Returns the fields that the head adds to the output."""
        if self.cfg.head == "none":
            return {}
        if self.cfg.head == "lm":
            return {"logits": self.project(x_BTD).logits()}
        if self.cfg.head == "question_answering":
            return span_logits(self.classifier(x_BTD))
        if self.cfg.head == "sequence_classification":
            last_B = last_token(jnp.asarray(input_ids), self.cfg.pad_token_id)
            x_BTD = jnp.take_along_axis(x_BTD, last_B[:, None, None], axis=1)[:, 0]
        return {"logits": self.classify(x_BTD)}
