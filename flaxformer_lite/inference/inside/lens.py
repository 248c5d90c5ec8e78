"""The logit lens: what a model would predict if each of its layers were the last."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.inside.capture import Inputs, call_arguments, capture
from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.types import Params


class Lens(NamedTuple):
    """The K likeliest tokens by layer and position, with their probabilities.

    Layers are `embeddings`, `layer 0`, ...
    """

    layers: tuple[str, ...]
    ids_LBTK: jax.Array
    probabilities_LBTK: jax.Array


def logit_lens(
    model: nn.Module,
    params: Params,
    inputs: Inputs,
    *,
    top_k: int = 5,
    vocab_size: int | None = None,
) -> Lens:
    """Reads the hidden state after each layer by the model's final norm, if any, and its head.

    In an encoder-decoder, these are the decoder's layers.

        >>> logit_lens(model, params, input_ids).ids_LBTK[:, 0, -1, 0]  # doctest: +SKIP

    Args:
      model: a model with a head over the vocabulary.
      params: its parameters.
      inputs: as for `capture`.
      top_k: K.
      vocab_size: the tokens of the tokenizer; ids from there on, which only pad the model's table
        to a round size, are not ranked. None ranks all.

    Raises:
      ConfigError: the model has another head, or fewer tokens.

    Reference: nostalgebraist, "interpreting GPT: the logit lens" (2020).
    """
    if not hasattr(model, "skeleton"):
        raise ConfigError(
            f"logit_lens of {type(model).__name__}: needs a model of this package, whose head it"
            " knows; of a module of your own, `capture` reads the hidden states."
        )
    names = hidden_names(model, running_stacks(model)[-1])
    check_lens(model, top_k, vocab_size)
    call_arguments(inputs)
    _, states = jax.jit(
        lambda params, inputs: capture(model, params, inputs, tuple(names.values()))
    )(params, inputs)
    return read_states(model, params, inputs, states, top_k, vocab_size)


def check_lens(model: nn.Module, top_k: int, vocab_size: int | None = None) -> None:
    """Refuses a model that predicts no tokens, or fewer than `top_k`."""
    cfg = model.cfg
    if cfg.head not in model.vocab_heads:
        heads = " or ".join(repr(head) for head in model.vocab_heads)
        raise ConfigError(
            f"head={cfg.head!r}: predicts no tokens; the logit lens needs a model with"
            f" head={heads}."
        )
    logits = cfg.of_decoder.vocab_size if cfg.decoder_layers else cfg.vocab_size
    vocab = min(logits, vocab_size or logits)
    if not 1 <= top_k <= vocab:
        raise ConfigError(f"top_k={top_k}: must be in 1..{vocab}, the model's vocabulary.")


def read_states(
    model: nn.Module,
    params: Params,
    inputs: Inputs,
    values: dict[str, jax.Array],
    top_k: int,
    vocab_size: int | None = None,
) -> Lens:
    """Computes `logit_lens` from states that `capture` has found."""
    names = hidden_names(model, running_stacks(model)[-1])
    *_, last = names.values()
    read = [
        _read(model, last, top_k, vocab_size, params, inputs, values[name])
        for name in names.values()
    ]
    return Lens(tuple(names), *map(jnp.stack, zip(*read, strict=True)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _read(
    model: nn.Module,
    last: str,
    top_k: int,
    vocab_size: int | None,
    params: Params,
    inputs: Inputs,
    x_BTD: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    # All that leads to the replaced state is dead code, which the compiler removes.
    output, _ = capture(model, params, inputs, (), patch={last: x_BTD})
    probabilities_BTV = jax.nn.softmax(vocabulary_logits(output), axis=-1)
    probabilities_BTK, ids_BTK = jax.lax.top_k(probabilities_BTV[..., :vocab_size], top_k)
    return ids_BTK, probabilities_BTK


def vocabulary_logits(output: Output) -> jax.Array:
    """Returns the float32 logits over the vocabulary, by whichever name the head gives them."""
    logits = output.logits if output.prediction_logits is None else output.prediction_logits
    assert logits is not None, "of a model with a head over the vocabulary"
    return logits.astype("float32")


def running_stacks(model: nn.Module) -> tuple[str, ...]:
    """Returns which of `encoder` and `decoder` the model runs, in order."""
    stacks = tuple(side for side in ("encoder", "decoder") if getattr(model.cfg, f"{side}_layers"))
    if not stacks:
        raise ConfigError(
            f"family={model.cfg.family!r}: has no layers to look into; `similar` shows its vectors."
        )
    if model.cfg.head in getattr(model, "encoder_heads", ()):
        return stacks[:1]
    return stacks


def hidden_names(model: nn.Module, side: str) -> dict[str, str]:
    """Returns the names in `capture` of a stack's hidden states, by labels for a reader.

    They are the states before the first layer and after each.
    """
    embedded = f"{side}_embed" if model.skeleton == "encoder_decoder" else "embed"
    layers = range(getattr(model.cfg, f"{side}_layers"))
    names = {"embeddings": embedded}
    for i in layers:
        names[f"layer {i}"] = f"{side}/layer_{i}"
    return names
