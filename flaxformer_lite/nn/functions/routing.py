"""Routing of tokens to experts: scores, choice, and the losses that keep the load even."""

import jax
import jax.numpy as jnp

from flaxformer_lite.config.choices import ROUTER_SCORES


def route_tokens(
    logits: jax.Array,
    count: int,
    *,
    score: str = "softmax",
    normalize: bool = True,
    scale: float = 1.0,
    bias_X: jax.Array | None = None,
    groups: int = 1,
    groups_per_token: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """Chooses each token's experts.

    Args:
      logits: of the router, [..., X].
      count: A, the number of experts of a token.
      score: `softmax` over all experts, or `sigmoid` of each (DeepSeek-V3).
      normalize: whether the weights of a token's experts sum to one, as a softmax over the chosen
        experts alone does. Otherwise they are the scores.
      scale: factor on the weights.
      bias_X: added to the scores for the choice only, so that the load can be evened out without a
        loss (Wang et al. 2024, arXiv:2408.15664).
      groups: G, the number of groups of neighbouring experts, such as those of one node.
      groups_per_token: the number of groups that a token's experts are of; 0 for all. They are
        those with the largest score, or with the largest sum of two if there is a bias (as in
        DeepSeek-V2 and in V3).

    Returns:
      The weights of the chosen experts, float32 [..., A], and their numbers, int32 [..., A], the
      likeliest first.

    Raises:
      ValueError: no such score, a count beyond the number of experts, or groups that do not fit.

    Reference: Shazeer et al. 2017 (arXiv:1701.06538), section 2.1; DeepSeek-AI 2024, DeepSeek-V3
    (arXiv:2412.19437), section 2.1.2.
    """
    experts = logits.shape[-1]
    if not 1 <= count <= experts:
        raise ValueError(f"count={count}: must be in 1..{experts}, the number of experts.")
    # In bfloat16, close scores of two experts would become ties.
    logits = logits.astype(jnp.float32)
    match score:
        case "softmax":
            scores_X = jax.nn.softmax(logits, axis=-1)
        case "sigmoid":
            scores_X = jax.nn.sigmoid(logits)
        case _:
            raise ValueError(
                f"score={score!r}: no such score; choose from {', '.join(ROUTER_SCORES)}."
            )
    if bias_X is None and not groups_per_token:
        weights_A, chosen_A = jax.lax.top_k(scores_X, count)
    else:
        ranks = scores_X
        if bias_X is not None:
            ranks = scores_X + jnp.broadcast_to(bias_X, scores_X.shape)
        if groups_per_token:
            best = 1 if bias_X is None else 2
            ranks = _of_best_groups(ranks, groups, groups_per_token, best, count)
        _, chosen_A = jax.lax.top_k(ranks, count)
        weights_A = jnp.take_along_axis(scores_X, chosen_A, axis=-1)
    if normalize:
        total_1 = weights_A.sum(axis=-1, keepdims=True)  # sigmoids of low logits are all 0
        weights_A = weights_A / jnp.where(total_1 > 0, total_1, 1.0)
    return weights_A * scale, chosen_A


def _of_best_groups(ranks: jax.Array, groups: int, kept: int, best: int, count: int) -> jax.Array:
    """Hides experts outside the best groups; a group is ranked by the sum of its best experts."""
    size, rest = divmod(ranks.shape[-1], groups)
    if rest or not best <= size or not kept <= groups or kept * size < count:
        raise ValueError(
            f"groups={groups}, groups_per_token={kept}: {ranks.shape[-1]} experts must divide"
            f" into groups of at least {best}, and those of a token must hold its {count} experts."
        )
    ranks_WX = ranks.reshape(*ranks.shape[:-1], groups, size)
    group_W = jax.lax.top_k(ranks_WX, best)[0].sum(axis=-1)
    _, chosen_A = jax.lax.top_k(group_W, kept)
    is_kept_W = jax.nn.one_hot(chosen_A, groups, dtype=bool).any(axis=-2)
    return jnp.where(is_kept_W[..., None], ranks_WX, -jnp.inf).reshape(ranks.shape)


def within_capacity(
    chosen_LA: jax.Array,
    experts: int,
    capacity: int | jax.Array,
    *,
    keep_L: jax.Array | None = None,
    priority_L: jax.Array | None = None,
) -> jax.Array:
    """Returns which choices of a group of tokens their experts have room for, bool [L, A].

    First choices come before second ones, and earlier tokens before later ones.

    Args:
      chosen_LA: the experts of each token, the likeliest first.
      experts: X, their number.
      capacity: the number of choices that an expert has room for.
      keep_L: False for tokens that go to no expert, such as padding.
      priority_L: tokens with more of it come before others of the same rank of choice (Riquelme et
        al. 2021, arXiv:2106.05974, section 4.1).

    Reference: Lepikhin et al. 2020, "GShard" (arXiv:2006.16668), algorithm 1; Fedus et al. 2021
    (arXiv:2101.03961), section 2.2.
    """
    if priority_L is not None:
        # Stable, so that tokens of equal priority keep their order.
        order_L = jnp.argsort(-priority_L, stable=True)
        sorted_keep_L = None if keep_L is None else keep_L[order_L]
        fits_LA = within_capacity(chosen_LA[order_L], experts, capacity, keep_L=sorted_keep_L)
        return fits_LA[jnp.argsort(order_L)]
    tokens, copies = chosen_LA.shape
    # Transposed, so that all first choices come before all second ones.
    chosen_S = chosen_LA.T.reshape(-1)
    is_of_SX = chosen_S[:, None] == jnp.arange(experts)[None]
    if keep_L is not None:
        is_of_SX &= jnp.tile(keep_L, copies)[:, None]
    count_SX = jnp.cumsum(is_of_SX, axis=0, dtype=jnp.int32)
    fits_S = (is_of_SX & (count_SX <= capacity)).any(axis=1)
    return fits_S.reshape(copies, tokens).T


def drop_choices(
    weights: jax.Array, chosen: jax.Array, fits: jax.Array, experts: int
) -> tuple[jax.Array, jax.Array]:
    """Removes choices: their weights are 0, and their expert is number X, which does not exist.

    All arrays are [..., A].
    """
    return jnp.where(fits, weights, 0.0), jnp.where(fits, chosen, experts)


def expert_counts(chosen_LA: jax.Array, experts: int, keep_L: jax.Array | None = None) -> jax.Array:
    """Returns the number of the tokens' choices that fell on each expert, float32 [X].

    Args:
      chosen_LA: the experts of each token.
      experts: X, their number.
      keep_L: False for padding, which does not count.
    """
    weight_L = jnp.ones(len(chosen_LA)) if keep_L is None else keep_L.astype(jnp.float32)
    weight_LA = jnp.broadcast_to(weight_L[:, None], chosen_LA.shape)
    return jnp.zeros(experts).at[chosen_LA.reshape(-1)].add(weight_LA.reshape(-1))


def expert_load(chosen_LA: jax.Array, experts: int, keep_L: jax.Array | None = None) -> jax.Array:
    """Returns the share of the tokens' choices that fell on each expert, float32 [X].

    Args:
      chosen_LA, experts, keep_L: as in `expert_counts`.
    """
    count_X = expert_counts(chosen_LA, experts, keep_L)
    return count_X / jnp.maximum(count_X.sum(), 1.0)


@jax.custom_vjp
def with_gradient(y: jax.Array, bias_X: jax.Array, gradient_X: jax.Array) -> jax.Array:
    """Returns `y`; the backward pass gives `bias_X` the gradient `gradient_X` instead of zero.

    Counts of microbatches and devices thereby add up on their way to the optimizer.
    """
    del bias_X, gradient_X
    return y


def _with_gradient_forward(
    y: jax.Array, bias_X: jax.Array, gradient_X: jax.Array
) -> tuple[jax.Array, jax.Array]:
    del bias_X
    return y, gradient_X


def _with_gradient_backward(
    gradient_X: jax.Array, d_y: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return d_y, gradient_X, jnp.zeros_like(gradient_X)


with_gradient.defvjp(_with_gradient_forward, _with_gradient_backward)


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


def router_sums(
    logits_GLX: jax.Array, chosen_GLA: jax.Array, keep_GL: jax.Array, balance: float, z_loss: float
) -> dict[str, jax.Array]:
    """Sums over the tokens of groups what the losses of a whole stack are made of.

    Those of several layers add up leaf by leaf; objectives/sums.py makes the losses of them.

    Args:
      logits_GLX: of the router of a layer.
      chosen_GLA: the experts of each token.
      keep_GL: float32, 0 for padding, which does not count.
      balance: factor on the loss that evens out the load; 0 leaves it out.
      z_loss: factor on the square of the router's normalizer; 0 leaves it out.
    """
    experts = logits_GLX.shape[-1]
    logits_GLX = logits_GLX.astype(jnp.float32)
    sums = {"tokens": keep_GL.sum(axis=1)}
    if balance:

        def counts(chosen_LA: jax.Array, keep_L: jax.Array) -> jax.Array:
            return expert_counts(chosen_LA, experts, keep_L)

        sums["load"] = balance * experts * jax.vmap(counts)(chosen_GLA, keep_GL)
        probability_GLX = jax.nn.softmax(logits_GLX, axis=-1)
        sums["probability"] = jnp.einsum("GLX,GL->GX", probability_GLX, keep_GL)
    if z_loss:
        square_GL = jnp.square(jax.nn.logsumexp(logits_GLX, axis=-1))
        sums["square"] = z_loss * jnp.sum(square_GL * keep_GL, axis=1)
    return sums


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
    # A batch of nothing but padding has loss zero.
    return total / jnp.maximum(weight_L.sum(), 1.0)
