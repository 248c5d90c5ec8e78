"""The loss of each token of one text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.inference.inside.lens import vocabulary_logits
from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.types import Params

MOST_MASKED = 128  # the longest text for which a copy is made with each token masked


class ShownLosses(NamedTuple):
    """-log p of tokens in nats, and a description of what they are predicted from.

    The loss is NaN where a token is not predicted.
    """

    ids_T: np.ndarray
    nats_T: np.ndarray
    given: str


def next_token_losses(
    output: Output, read_T: np.ndarray, goals_T: np.ndarray
) -> ShownLosses | None:
    """Computes the losses of next tokens `goals_T`, -1 for none, after the tokens `read_T`.

    Returns None if there are none.
    """
    if not (goals_T >= 0).any():
        return None
    logprobs_TV = np.asarray(jax.nn.log_softmax(vocabulary_logits(output)[0], axis=-1))
    nats_T = np.where(
        goals_T >= 0, -logprobs_TV[np.arange(len(goals_T)), goals_T], np.float32("nan")
    )
    if (goals_T >= 0).all():  # a decoder's targets, one position ahead of its inputs
        return ShownLosses(goals_T, nats_T, "those before it and the encoder's text")
    return ShownLosses(read_T, np.roll(nats_T, 1), "those before it")


def masked_losses(
    model: nn.Module, params: Params, ids_T: np.ndarray, mask_id: int, special: Sequence[int]
) -> ShownLosses | None:
    """Computes the pseudo-losses of a masked LM, of each token when it alone is masked.

    Returns None if the text has more than MOST_MASKED tokens or only special ones.

    Reference: Salazar et al. 2020, section 2 (arXiv:1910.14659).
    """
    places_M = np.flatnonzero(~np.isin(ids_T, list(special))).astype(np.int32)
    if not len(places_M) or len(ids_T) > MOST_MASKED:
        return None
    ids_MT = np.tile(ids_T, (len(places_M), 1))
    ids_MT[np.arange(len(places_M)), places_M] = mask_id

    def logprobs(params: Params, ids_MT: jax.Array) -> jax.Array:
        output: Any = model.apply({"params": params}, ids_MT, masked_positions=places_M[:, None])
        logprobs_MV = jax.nn.log_softmax(vocabulary_logits(output)[:, 0])
        return jnp.take_along_axis(logprobs_MV, ids_T[places_M][:, None], axis=-1)

    nats_T = np.full(len(ids_T), np.nan, np.float32)
    nats_T[places_M] = -jax.jit(logprobs)(params, ids_MT)[:, 0]
    return ShownLosses(ids_T, nats_T, "all others, with it alone masked (a pseudo-loss)")
