"""The equations of policy gradients with groups of answers: GRPO and its relatives.

References: Shao et al. 2024, "DeepSeekMath", equations 3 and 4 (arXiv:2402.03300); Liu et al. 2025,
"Understanding R1-Zero-like training", Dr. GRPO (arXiv:2503.20783); Ahmadian et al. 2024, "Back to
basics", RLOO (arXiv:2402.14740); Yu et al. 2025, "DAPO", equations 8 and 12 (arXiv:2503.14476);
Zheng et al. 2025, "Group sequence policy optimization", equations 5 to 7 (arXiv:2507.18071).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

SMALLEST_STD = 1e-4  # added to a standard deviation, as in TRL, so that equal rewards give 0


class TokenLosses(NamedTuple):
    """The terms of a policy gradient, float32 [N, T] each; meaningless outside of the mask.

    Attributes:
      loss: to minimize, with the penalty of the divergence.
      ratio: p(token) / p_old(token), or the ratio of the whole answer.
      is_clipped: whether the clipped ratio is what counts, so that the token has no gradient.
      divergence: the estimate of the divergence from the reference; 0 without one.
    """

    loss: jax.Array
    ratio: jax.Array
    is_clipped: jax.Array
    divergence: jax.Array


def compute_advantages(rewards_BG: jax.Array, *, normalize: str) -> jax.Array:
    """Compares the reward of each answer with its group's.

    Args:
      rewards_BG: float32, of G answers to each of B prompts.
      normalize: `std` for (r - mean) / std (GRPO, equation 4), `none` for r - mean (Dr. GRPO),
        `leave_one_out` for r - the mean of the others (RLOO).

    Returns:
      float32 [B, G]; 0 for a group of equal rewards, or of one answer.
    """
    G = rewards_BG.shape[1]
    centered_BG = rewards_BG - rewards_BG.mean(axis=1, keepdims=True)
    # The mean of equal numbers may differ from them in the last bit.
    is_equal_B1 = (rewards_BG == rewards_BG[:, :1]).all(axis=1, keepdims=True)
    centered_BG = jnp.where(is_equal_B1, 0.0, centered_BG)
    if normalize == "std":
        std_B1 = jnp.sqrt((centered_BG**2).sum(axis=1, keepdims=True) / max(G - 1, 1))
        return centered_BG / (std_B1 + SMALLEST_STD)
    if normalize == "leave_one_out":
        return centered_BG * (G / max(G - 1, 1))
    return centered_BG


def compute_token_losses(
    log_probs_NT: jax.Array,
    old_NT: jax.Array,
    advantages_N: jax.Array,
    mask_NT: jax.Array,
    reference_NT: jax.Array | None = None,
    /,
    *,
    ratio: str = "token",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl: float = 0.0,
) -> TokenLosses:
    """Computes the clipped loss of each token.

    It is `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl D` (GRPO, equation 3), where r is
    p / p_old of the token, or the geometric mean of those of its answer (GSPO, equation 7), and D =
    p_ref / p - log(p_ref / p) - 1 (Schulman's estimate k3 of the divergence; GRPO, equation 4).

    Args:
      log_probs_NT: log-probabilities of the tokens under the weights that are trained.
      old_NT: under the weights that wrote them.
      advantages_N: of the answers.
      mask_NT: bool, the tokens of answers that count.
      reference_NT: under the reference; None if `kl` is 0.
      ratio: `token` or `sequence`.
    """
    log_ratio_NT = log_probs_NT - old_NT
    if ratio == "sequence":
        count_N1 = jnp.maximum(mask_NT.sum(axis=1, keepdims=True, dtype=jnp.float32), 1.0)
        total_N1 = jnp.where(mask_NT, log_ratio_NT, 0.0).sum(axis=1, keepdims=True)
        log_ratio_NT = jnp.broadcast_to(total_N1 / count_N1, log_ratio_NT.shape)
    # Where nothing counts, the ratio of two meaningless numbers may be infinite.
    ratio_NT = jnp.exp(jnp.where(mask_NT, log_ratio_NT, 0.0))
    clipped_NT = jnp.clip(ratio_NT, 1 - clip_low, 1 + clip_high)
    plain_NT = ratio_NT * advantages_N[:, None]
    bounded_NT = clipped_NT * advantages_N[:, None]
    loss_NT = -jnp.minimum(plain_NT, bounded_NT)
    divergence_NT = jnp.zeros_like(loss_NT)
    if reference_NT is not None:
        gap_NT = jnp.where(mask_NT, reference_NT - log_probs_NT, 0.0)
        divergence_NT = jnp.exp(gap_NT) - gap_NT - 1
        loss_NT = loss_NT + kl * divergence_NT
    return TokenLosses(loss_NT, ratio_NT, bounded_NT < plain_NT, divergence_NT)
