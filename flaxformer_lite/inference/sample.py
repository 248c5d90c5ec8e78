"""Greedy search and sampling: one compiled prefill, one compiled loop."""

import functools

import flax
import jax
import jax.numpy as jnp

from flaxformer_lite.inference import engine
from flaxformer_lite.inference.engine import Caches, Params, PromptRows
from flaxformer_lite.inference.rules import (
    GenerationRules,
    choose_tokens,
    constrain_logits,
    is_stop_token,
    key_at,
)


class SampleState(flax.struct.PyTreeNode):
    """The state of the loop.

    With guesses (inference/speculative.py) rows have different numbers of new tokens, `lengths_B`;
    `new` is the number that all rows have.
    """

    tokens_BS: jax.Array  # int32, prompt and continuation
    # float32, log-probabilities under the model itself; None if not asked for
    logprobs_BS: jax.Array | None
    done_B: jax.Array  # bool, rows that have ended
    lengths_B: jax.Array  # int32, new tokens of each row, including the one that ended it
    new: jax.Array  # int32, columns of the continuation so far
    cache: Caches | None  # of all tokens but the last
    draft_cache: Caches | None = None  # of a draft model
    # int32, calls of the model for each row after its prompt; None without guesses
    reads_B: jax.Array | None = None


@functools.partial(jax.jit, static_argnames=("slots", "samples", "scores"))
def start(
    logits_BV, tokens_BT, start_B, rules: GenerationRules, seed, *, slots, samples, scores
) -> SampleState:
    """Writes the first token of each row; the caller adds the caches.

    Args:
      start_B: first column of each row that holds a token.
      slots: S, columns of prompt and continuation.
      samples: rows per prompt.
      scores: whether to keep log-probabilities.
    """
    tokens_BS = jnp.pad(tokens_BT, ((0, 0), (0, slots - tokens_BT.shape[1])))
    logits_BV = jnp.repeat(logits_BV, samples, axis=0)
    tokens_BS = jnp.repeat(tokens_BS, samples, axis=0)
    state = SampleState(
        tokens_BS=tokens_BS,
        logprobs_BS=jnp.zeros(tokens_BS.shape, jnp.float32) if scores else None,
        done_B=jnp.zeros(len(tokens_BS), bool),
        lengths_B=jnp.zeros(len(tokens_BS), jnp.int32),
        new=jnp.int32(0),
        cache=None,
    )
    return _write(state, logits_BV, jnp.repeat(start_B, samples), tokens_BT.shape[1], rules, seed)


@functools.partial(jax.jit, static_argnames=("model", "prompt"), donate_argnames=("state",))
def proceed(
    model,
    params: Params,
    state: SampleState,
    rows: PromptRows,
    rules: GenerationRules,
    seed,
    until,
    *,
    prompt,
) -> SampleState:
    """Writes tokens until each row has `until` of them, or all are done.

    `prompt` columns precede the first.
    """
    slots = state.tokens_BS.shape[1]

    def unfinished(state: SampleState):
        return (state.new < until) & ~jnp.all(state.done_B)

    def step(state: SampleState) -> SampleState:
        slot = prompt + state.new - 1
        last_B = jax.lax.dynamic_index_in_dim(state.tokens_BS, slot, axis=1, keepdims=False)
        logits_BV, cache = engine.advance(model, params, last_B, rows, state.cache, slot, slots)
        return _write(state.replace(cache=cache), logits_BV, rows.start_B, prompt, rules, seed)

    return jax.lax.while_loop(unfinished, step, state)


def _write(
    state: SampleState, logits_BV, start_B, prompt: int, rules: GenerationRules, seed
) -> SampleState:
    column = prompt + state.new
    rows_B = jnp.arange(len(logits_BV), dtype=jnp.int32)
    keys_B = jax.vmap(lambda row: key_at(seed, row, state.new))(rows_B)
    allowed_BV = constrain_logits(rules, logits_BV, state.tokens_BS, start_B, column, state.new)
    token_B = jnp.where(state.done_B, rules.pad, choose_tokens(rules, allowed_BV, keys_B))
    logprobs_BS = state.logprobs_BS
    if logprobs_BS is not None:
        token_logit_B1 = jnp.take_along_axis(logits_BV, token_B[:, None], axis=1)
        logprob_B1 = token_logit_B1 - jax.nn.logsumexp(logits_BV, axis=1, keepdims=True)
        logprob_B1 = jnp.where(state.done_B[:, None], 0.0, logprob_B1)
        logprobs_BS = jax.lax.dynamic_update_slice_in_dim(logprobs_BS, logprob_B1, column, axis=1)
    return state.replace(
        tokens_BS=jax.lax.dynamic_update_slice_in_dim(
            state.tokens_BS, token_B[:, None], column, axis=1
        ),
        logprobs_BS=logprobs_BS,
        done_B=state.done_B | is_stop_token(rules, token_B),
        lengths_B=state.lengths_B + (~state.done_B).astype(jnp.int32),
        new=state.new + 1,
    )
