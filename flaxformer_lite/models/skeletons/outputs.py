"""Records that models return, with the field names of transformers."""

import flax
import jax

from flaxformer_lite.nn.functions.losses import DeferredLogits
from flaxformer_lite.nn.modules.cache import Cache


class Output(flax.struct.PyTreeNode):
    """The output of a model; fields that a model or head does not have are None."""

    last_hidden_state: jax.Array | None = None  # [B, T, D], after the final norm
    # [B, T, V] of a language model, [B, C] or [B, T, C] of a classifier
    logits: jax.Array | None = None
    pooler_output: jax.Array | None = None  # [B, D]
    text_embeds: jax.Array | None = None  # [B, P], CLIP's projection of a text
    prediction_logits: jax.Array | None = None  # [B, T, V], pretraining head
    seq_relationship_logits: jax.Array | None = None  # [B, 2], pretraining head
    sop_logits: jax.Array | None = None  # [B, 2], ALBERT's pretraining head (sentence order)
    start_logits: jax.Array | None = None  # [B, T], question answering
    end_logits: jax.Array | None = None  # [B, T], question answering
    encoder_last_hidden_state: jax.Array | None = None  # [B, S, D], encoder-decoder
    # With output_hidden_states: embeddings, then each layer's output, the last of them the model's,
    # after the final norm.
    hidden_states: tuple[jax.Array, ...] | None = None
    # of an encoder-decoder, in place of hidden_states
    encoder_hidden_states: tuple[jax.Array, ...] | None = None
    decoder_hidden_states: tuple[jax.Array, ...] | None = None
    # With output_attentions: the weights of each layer, float32 [B, N, T, S], before dropout.
    attentions: tuple[jax.Array, ...] | None = None
    # of an encoder-decoder, in place of attentions
    encoder_attentions: tuple[jax.Array, ...] | None = None
    decoder_attentions: tuple[jax.Array, ...] | None = None
    cross_attentions: tuple[jax.Array, ...] | None = None
    cache: Cache | None = None  # the key-value caches after this call, if any were passed


class Features(flax.struct.PyTreeNode):
    """The input of a pretraining loss: hidden states and the weights that turn them into logits."""

    # x [B, T, D] (or [B, M, D] at masked positions), the vocabulary kernel and its bias
    projection: DeferredLogits
    next_sentence_logits: jax.Array | None = None  # [B, 2] or None


def span_logits(logits_BTC: jax.Array) -> dict[str, jax.Array]:
    """Returns the fields of a question-answering head: logits of the start and the end."""
    return {"start_logits": logits_BTC[..., 0], "end_logits": logits_BTC[..., 1]}
