"""Routing of tokens to experts: scores, choice, and the losses that keep the load even."""

import jax
import jax.numpy as jnp

from flaxformer_lite.config.choices import ROUTER_SCORES


def route(
    logits_X: jax.Array,
    count: int,
    *,
    score: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    bias_X: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Chooses each token's experts.

    Args:
      logits_X: of the router, [..., X].
      count: A, the number of experts of a token.
      score: `softmax` over all experts, or `sigmoid` of each (DeepSeek-V3).
      normalize: whether the weights of a token's experts sum to one, as a softmax over the chosen
        experts alone does. Otherwise they are the scores.
      scale: factor on the weights.
      bias_X: added to the scores for the choice only, so that the load can be evened out without a
        loss (Wang et al. 2024, arXiv:2408.15664).

    Returns:
      The weights of the chosen experts, float32 [..., A], and their numbers, int32 [..., A], the
      likeliest first.

    Raises:
      ValueError: no such score, or a count beyond the number of experts.

    Reference: Shazeer et al. 2017 (arXiv:1701.06538), section 2.1; DeepSeek-AI 2024, DeepSeek-V3
    (arXiv:2412.19437), section 2.1.2.
    """
    experts = logits_X.shape[-1]
    if not 1 <= count <= experts:
        raise ValueError(f"count={count}: must be in 1..{experts}, the number of experts.")
    logits_X = logits_X.astype(jnp.float32)
    match score:
        case "softmax":
            scores_X = jax.nn.softmax(logits_X, axis=-1)
        case "sigmoid":
            scores_X = jax.nn.sigmoid(logits_X)
        case _:
            raise ValueError(
                f"score={score!r}: no such score; choose from {', '.join(ROUTER_SCORES)}."
            )
    if bias_X is None:
        weights_A, chosen_A = jax.lax.top_k(scores_X, count)
    else:
        _, chosen_A = jax.lax.top_k(scores_X + jnp.broadcast_to(bias_X, scores_X.shape), count)
        weights_A = jnp.take_along_axis(scores_X, chosen_A, axis=-1)
    if normalize:
        weights_A = weights_A / weights_A.sum(axis=-1, keepdims=True)
    return weights_A * scale, chosen_A


def expert_load(chosen_LA: jax.Array, experts: int, keep_L: jax.Array | None = None) -> jax.Array:
    """Returns the share of the tokens' choices that fell on each expert, float32 [X].

    Args:
      chosen_LA: the experts of each token.
      experts: X, their number.
      keep_L: False for padding, which does not count.
    """
    weight_L = jnp.ones(len(chosen_LA)) if keep_L is None else keep_L.astype(jnp.float32)
    weight_LA = jnp.broadcast_to(weight_L[:, None], chosen_LA.shape)
    count_X = jnp.zeros(experts).at[chosen_LA.reshape(-1)].add(weight_LA.reshape(-1))
    return count_X / jnp.maximum(count_X.sum(), 1.0)


def balance_loss(
    logits_LX: jax.Array, chosen_LA: jax.Array, keep_L: jax.Array | None = None
) -> jax.Array:
    """Returns X times the sum over experts of load times mean probability.

    It is 1 if all experts are used equally, and at most X.

    Args:
      logits_LX: of the router.
      chosen_LA: the experts of each token.
      keep_L: False for padding, which does not count.

    Reference: Fedus et al. 2021, "Switch Transformers" (arXiv:2101.03961), equations 4 to 6.
    """
    experts = logits_LX.shape[-1]
    probability_LX = jax.nn.softmax(logits_LX.astype(jnp.float32), axis=-1)
    load_X = expert_load(chosen_LA, experts, keep_L)
    return experts * jnp.sum(load_X * _mean(probability_LX, keep_L))


def z_loss(logits_LX: jax.Array, keep_L: jax.Array | None = None) -> jax.Array:
    """Returns the mean square of the logarithm of the router's normalizer.

    Reference: Zoph et al. 2022, "ST-MoE" (arXiv:2202.08906), equation 5.
    """
    normalizer_L = jax.nn.logsumexp(logits_LX.astype(jnp.float32), axis=-1)
    return _mean(jnp.square(normalizer_L), keep_L)


def _mean(values: jax.Array, keep_L: jax.Array | None) -> jax.Array:
    """Returns the mean over the kept tokens."""
    if keep_L is None:
        return values.mean(axis=0)
    weight_L = keep_L.astype(values.dtype)
    total = jnp.tensordot(weight_L, values, axes=1)
    return total / jnp.maximum(weight_L.sum(), 1.0)
