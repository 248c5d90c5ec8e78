"""The encoder-decoder skeleton: a token table, two stacks, and cross-attention between them."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.models.skeletons.call_with_intermediates import call_inside
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.models.skeletons.inputs import (
    check_source,
    place_slots,
    position_ids_of,
    read_ids,
    rows_of,
    visibility_mask,
)
from flaxformer_lite.models.skeletons.outputs import Features, Output, span_logits
from flaxformer_lite.models.skeletons.packed_rows import PackedRows
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.embed import EmbedInputs, TokenEmbed
from flaxformer_lite.nn.modules.heads import Pooler, VocabHead
from flaxformer_lite.nn.modules.stack import Stack


class EncoderDecoderModel(FamilyModel):
    """An encoder-decoder for generation (`head='lm'`), classification, or without a head (`none`).

    The head `encoder` reduces it to its encoder. Classifiers of tokens read the encoder's hidden
    states, others the decoder's. Sequence classification reads them at the input's last end token,
    which each row must have: without it the row's logits are NaN. Families with these heads define
    the decoder's input for callers that pass none.
    Call it with input_ids [B, S], decoder_input_ids [B, T] and optionally attention_mask [B, S],
    decoder_attention_mask [B, T], segment_ids [B, S] with decoder_segment_ids [B, T] (packed pairs,
    0 is padding), decoder_position_ids [B, T] (by default all columns are counted, including
    padding); for generation also with encoder_output [B, S, D], cache and cache_index; the
    decoder's mask and segments are then over slots, see `DecoderModel`. In place of ids it takes
    vectors as the token table has them, inputs_embeds [B, S, E] and decoder_inputs_embeds
    [B, T, E]. For output_attentions and output_hidden_states see `Output`.
    """

    skeleton: ClassVar[str] = "encoder_decoder"
    heads: ClassVar[tuple[str, ...]] = ("lm", "none", "encoder")
    # heads that use no decoder
    encoder_heads: ClassVar[tuple[str, ...]] = (
        "encoder",
        "token_classification",
    )
    # the decoder of a model without decoder_start_token_id starts with the token of a language
    starts_with_language: ClassVar[bool] = False
    # whether the decoder's tokens are normalized before positions are added, and not scaled
    norms_tokens_first: ClassVar[bool] = False
    # of the logits; False for BART's `final_logits_bias`, a buffer in torch
    trained_bias: ClassVar[bool] = True
    heads_of_ids: ClassVar[tuple[str, ...]] = ("sequence_classification",)

    def setup(self) -> None:
        cfg = self.cfg
        decoder_cfg = self.cfg.of_decoder
        run = self.execution
        self.token_embed = TokenEmbed(build_layers.embed(cfg, frozen=self.frozen_padding), run)
        self.encoder_embed = EmbedInputs(build_layers.embed(cfg), run)
        self.encoder = Stack(build_layers.stack(cfg, "encoder"), run, embedded=True)
        if cfg.head in ("sequence_classification", "token_classification", "question_answering"):
            self.classifier = build_layers.classifier(cfg, run)
        if cfg.head in self.encoder_heads:
            return
        if cfg.head == "sequence_classification":
            self.pooler = Pooler("tanh", cfg.initial, run)
        if cfg.has_decoder_table:
            self.decoder_token_embed = TokenEmbed(build_layers.embed(decoder_cfg), run)
        decoder_embed = build_layers.embed(decoder_cfg, norm_first=self.norms_tokens_first)
        self.decoder_embed = EmbedInputs(decoder_embed, run)
        self.decoder = Stack(build_layers.stack(cfg, "decoder"), run, causal=True, embedded=True)
        if cfg.head in self.vocab_heads:
            self.lm_head = VocabHead(build_layers.vocab(decoder_cfg), run, self.trained_bias)

    @property
    def decoder_tokens(self) -> TokenEmbed:
        """Returns the decoder's token table: the encoder's, unless it has its own."""
        if self.cfg.has_decoder_table:
            return self.decoder_token_embed
        return self.token_embed

    def positions(self, input_ids, position_ids, attention_mask, segment_ids) -> jax.Array:
        """Returns position ids of the encoder, [B, S] or [1, S]."""
        return position_ids_of(self.cfg, input_ids, position_ids, attention_mask, segment_ids)

    def encode(
        self,
        input_ids=None,
        *,
        inputs_embeds=None,
        attention_mask=None,
        position_ids=None,
        segment_ids=None,
        packing=None,
    ) -> jax.Array:
        """Returns the encoder's last hidden state, [B, S, D].

        With `packing` padding is not computed, and zero.
        """
        input_ids = read_ids(self.cfg, input_ids, inputs_embeds, attention_mask)
        attention_mask = rows_of("attention_mask", attention_mask, input_ids)
        segment_ids = rows_of("segment_ids", segment_ids, input_ids)
        positions_BS = self.positions(input_ids, position_ids, attention_mask, segment_ids)
        packed = None
        if packing is not None:
            packed = PackedRows(packing, input_ids.shape, inputs_embeds)
            segment_ids = packed.segments(attention_mask)
            attention_mask = None
            input_ids = packed.pack(input_ids)
            positions_BS = packed.pack(positions_BS)
        if inputs_embeds is not None:
            x_BSE = self.place_vectors(inputs_embeds, "encoder", self.token_embed)
        else:
            x_BSE = self.token_embed(input_ids)
        x_BSD = self.encoder_embed(x_BSE, positions_BS, None)
        context = Context(mask=visibility_mask(attention_mask, segment_ids, None))
        x_BSD = self.encoder(x_BSD, positions_BS, context)
        if packed is not None:
            x_BSD = packed.unpack(x_BSD)
        return x_BSD

    def decode(
        self,
        decoder_input_ids,
        encoder_output,
        *,
        decoder_inputs_embeds=None,
        attention_mask=None,
        segment_ids=None,
        decoder_attention_mask=None,
        decoder_position_ids=None,
        decoder_segment_ids=None,
        cache=None,
        cache_index=None,
    ) -> tuple[jax.Array, list | None]:
        """Returns the decoder's last hidden state [B, T, D], and updated caches if any were passed.

        encoder_output may be None if the caches already hold the encoder's keys and values.
        """
        cfg = self.cfg.of_decoder
        names = ("decoder_input_ids", "decoder_inputs_embeds")
        decoder_input_ids = read_ids(cfg, decoder_input_ids, decoder_inputs_embeds, names=names)
        attention_mask, segment_ids = check_source(
            cache,
            encoder_output,
            decoder_input_ids,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
        )
        slots, (decoder_attention_mask, decoder_segment_ids) = place_slots(
            decoder_input_ids,
            cache,
            cache_index,
            decoder_attention_mask=decoder_attention_mask,
            decoder_segment_ids=decoder_segment_ids,
        )
        positions_BT = position_ids_of(
            cfg,
            decoder_input_ids,
            decoder_position_ids,
            None,
            decoder_segment_ids,
            slots=slots,
            name="decoder_position_ids",
        )
        context = Context(
            mask=visibility_mask(
                decoder_attention_mask, decoder_segment_ids, None, structure=masks.causal()
            ),
            # A mask of this call's rows, as only the decoder's own columns are slots.
            cross_mask=visibility_mask(
                attention_mask, slots.of_call(decoder_segment_ids), segment_ids
            ),
            encoder_output_BSD=encoder_output,
            structured=True,
        )
        table = self.decoder_tokens
        if decoder_inputs_embeds is not None:
            x_BTD = self.place_vectors(decoder_inputs_embeds, "decoder", table)
        else:
            x_BTD = table(decoder_input_ids, scaled=not self.norms_tokens_first)
        x_BTD = slots.check(self.decoder_embed(x_BTD, positions_BT, None))
        out = self.decoder(x_BTD, positions_BT, slots.in_context(context), cache)
        if cache is None:
            return out, None
        return out

    def _both(
        self,
        input_ids,
        decoder_input_ids,
        *,
        inputs_embeds=None,
        encoder_output=None,
        position_ids=None,
        **inputs,
    ):
        if encoder_output is None:
            source = {name: inputs.get(name) for name in ("attention_mask", "segment_ids")}
            source |= {"inputs_embeds": inputs_embeds, "position_ids": position_ids}
            encoder_output = self.encode(input_ids, **source)
        return *self.decode(decoder_input_ids, encoder_output, **inputs), encoder_output

    def project(self, x_BTD: jax.Array) -> DeferredLogits:
        """Returns deferred logits [B, T, V] of the decoder's last hidden state."""
        return self.lm_head(x_BTD, self.decoder_tokens.embedding)

    def features(self, input_ids=None, decoder_input_ids=None, **inputs) -> Features:
        """Returns decoder hidden states with the vocabulary's weights, for pretraining losses."""
        x_BTD, _, _ = self._both(input_ids, decoder_input_ids, **inputs)
        return Features(self.project(x_BTD))

    def __call__(
        self,
        input_ids=None,
        decoder_input_ids=None,
        *,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        **inputs,
    ) -> Output:
        if output_attentions or output_hidden_states:
            return call_inside(
                self,
                output_attentions,
                output_hidden_states,
                input_ids,
                decoder_input_ids,
                **inputs,
            )
        if input_ids is not None:
            input_ids = jnp.asarray(input_ids)
        if self.cfg.head in self.encoder_heads:
            x_BSD = self.encode(input_ids, **inputs)
            return Output(last_hidden_state=x_BSD).replace(**self.on_top(x_BSD, input_ids))
        if decoder_input_ids is None and inputs.get("decoder_inputs_embeds") is None:
            if input_ids is None:
                raise ConfigError("decoder_input_ids is missing: without input_ids, pass it.")
            decoder_input_ids = self.shift_right(input_ids)
        x_BTD, cache, encoded_BSD = self._both(input_ids, decoder_input_ids, **inputs)
        output = Output(last_hidden_state=x_BTD, encoder_last_hidden_state=encoded_BSD, cache=cache)
        return output.replace(**self.on_top(x_BTD, input_ids))

    def shift_right(self, input_ids) -> jax.Array:
        """Returns the decoder's input if the caller passes none.

        Only families with classifiers define it.
        """
        raise ValueError(
            "decoder_input_ids is missing: pass the start token and the target without its last"
            " token."
        )

    def on_top(self, x_BTD: jax.Array, input_ids) -> dict[str, jax.Array]:
        """Returns the fields that the head adds to the output."""
        head = self.cfg.head
        if head in self.vocab_heads:
            return {"logits": self.project(x_BTD).logits()}
        if head == "token_classification":
            return {"logits": self.classifier(x_BTD)}
        if head == "question_answering":
            return span_logits(self.classifier(x_BTD))
        if head != "sequence_classification":
            return {}
        columns_1T = jnp.arange(input_ids.shape[1], dtype=jnp.int32)[None]
        end_B1 = jnp.max(
            jnp.where(input_ids == self.end_token, columns_1T, -1), axis=1, keepdims=True
        )
        end_B1D = jnp.take_along_axis(x_BTD, end_B1[..., None], axis=1)
        # A row without the end token has no vector to classify, and inside jit it cannot be
        # refused.
        return {"logits": jnp.where(end_B1 < 0, jnp.nan, self.classifier(self.pooler(end_B1D)))}

    @property
    def end_token(self) -> int | None:
        """Returns the id of the end token, where sequence classification reads."""
        return self.cfg.eos_token_id
