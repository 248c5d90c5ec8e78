"""Beam search over J continuations of each prompt, with a pool of the J best that have ended.

Reference: Graves 2012, section 3.2 (arXiv:1211.3711); the length penalty of Wu et al. 2016, section
7 (arXiv:1609.08144), in transformers' form, sum of log-probabilities / length ** penalty.
"""

import functools
from typing import NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.inference import engine
from flaxformer_lite.inference.engine import Caches, Params, PromptRows
from flaxformer_lite.inference.rules import GenerationRules, constrain_logits, is_stop_token
from flaxformer_lite.nn.functions import sampling

# The score of forbidden choices. It is finite, as in transformers, so that ties break the same way.
FORBIDDEN_SCORE = -1e9


class Pool(flax.struct.PyTreeNode):
    """The best continuations that have ended, best first."""

    tokens_BJS: jax.Array  # int32, prompt and continuation
    scores_BJ: jax.Array  # float32, sum of log-probabilities / length ** length_penalty
    lengths_BJ: jax.Array  # int32, new tokens
    filled_BJ: jax.Array  # bool, False for entries that are still empty


class BeamState(flax.struct.PyTreeNode):
    """The state of the search."""

    tokens_BJS: jax.Array  # int32, prompt and continuation
    scores_BJ: jax.Array  # float32, sums of log-probabilities, best first
    pool: Pool  # continuations that have ended
    open_B: jax.Array  # bool, False once no beam of the row is expected to enter its pool
    stuck: jax.Array  # bool, whether no row has a beam that can continue
    new: jax.Array  # int32, tokens of the continuation so far
    cache: Caches | None  # of all tokens but the last


class Search(NamedTuple):
    """The options of beam search itself.

    They are numpy scalars, so that changing them does not recompile.
    """

    length_penalty: np.float32
    until_full: np.bool_  # early_stopping=True
    never: np.bool_  # early_stopping="never"


@functools.partial(jax.jit, static_argnames=("slots", "beams"))
def start(
    logits_BV, tokens_BT, start_B, rules: GenerationRules, search: Search, *, slots, beams
) -> BeamState:
    """Writes the first token of each beam; takes the arguments of `sample.start`."""
    B, T = tokens_BT.shape
    tokens_BJS = jnp.repeat(jnp.pad(tokens_BT, ((0, 0), (0, slots - T)))[:, None], beams, axis=1)
    unscored_BJ = jnp.full((B, beams), FORBIDDEN_SCORE, jnp.float32)
    empty = jnp.zeros((B, beams), jnp.int32)
    state = BeamState(
        tokens_BJS=tokens_BJS,
        scores_BJ=unscored_BJ.at[:, 0].set(
            0.0
        ),  # beams are equal at the start, so only one may count
        pool=Pool(tokens_BJS, unscored_BJ, lengths_BJ=empty, filled_BJ=empty != 0),
        open_B=jnp.ones(B, bool),
        stuck=jnp.zeros((), bool),
        new=jnp.int32(0),
        cache=None,
    )
    logits = jnp.repeat(logits_BV, beams, axis=0)
    starts = jnp.repeat(start_B, beams)
    return _write(state, logits, starts, T, rules, search)[0]


@functools.partial(jax.jit, static_argnames=("model", "prompt"), donate_argnames=("state",))
def proceed(
    model,
    params: Params,
    state: BeamState,
    rows: PromptRows,
    rules: GenerationRules,
    search: Search,
    *,
    prompt,
) -> BeamState:
    """Runs the search to its end.

    Args:
      model: the linen module.
      params: its parameters.
      state: the state that `start` returned, with a cache of the prompts.
      rows: the rows of the beams, [B * J].
      rules: which tokens may come next, and which end a continuation.
      search: the other options.
      prompt: the number of columns before the first new token.
    """
    B, J, S = state.tokens_BJS.shape

    def unfinished(state: BeamState):
        full = search.until_full & jnp.all(state.pool.filled_BJ)
        return jnp.any(state.open_B) & ~state.stuck & ~full

    def step(state: BeamState) -> BeamState:
        slot = prompt + state.new - 1
        last_BJ = jax.lax.dynamic_index_in_dim(state.tokens_BJS, slot, axis=2, keepdims=False)
        logits, cache = engine.advance(
            model, params, last_BJ.reshape(B * J), rows, state.cache, slot, S
        )
        state, parents = _write(state, logits, rows.start_B, prompt, rules, search)
        return state.replace(cache=engine.reorder(model.cfg, cache, parents))

    return jax.lax.while_loop(unfinished, step, state)


def _write(
    state: BeamState, logits, starts, prompt: int, rules: GenerationRules, search: Search
) -> tuple[BeamState, jax.Array]:
    """Extends each beam by one token, chosen among the candidates of all beams of a row.

    Args:
      state: the state before the token.
      logits: float32 [B * J, V].
      starts: int32 [B * J], the first column of each row that is not padding.
      prompt, rules, search: as in `proceed`.

    Returns:
      The new state, and the beam that each beam continues, [B * J].
    """
    B, J, S = state.tokens_BJS.shape
    column = prompt + state.new
    V = logits.shape[-1]
    tokens = state.tokens_BJS.reshape(B * J, S)
    logprobs = jax.nn.log_softmax(logits, axis=-1)
    logprobs = constrain_logits(rules, logprobs, tokens, starts, column, state.new)
    totals = (logprobs.reshape(B, J, V) + state.scores_BJ[:, :, None]).reshape(B, J * V)
    # Enough for J of them to continue even if every stop token of every beam is among them.
    stops = 0 if rules.eos_E is None else len(rules.eos_E)
    scores, index = sampling.largest(totals, min(max(2, 1 + stops) * J, J * V))
    beam = index // V
    token = (index % V).astype(jnp.int32)
    tokens = _pick(state.tokens_BJS, beam)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], column, axis=2)
    new = state.new + 1
    ended = is_stop_token(rules, token) | (new >= rules.max_new)

    running_BJ, chosen_BJ = jax.lax.top_k(scores + FORBIDDEN_SCORE * ended.astype(jnp.float32), J)
    pool = _collect(state, tokens, scores, ended, new, search)
    parents_BJ = J * jnp.arange(B, dtype=beam.dtype)[:, None] + _pick(beam, chosen_BJ)
    state = BeamState(
        tokens_BJS=_pick(tokens, chosen_BJ),
        scores_BJ=running_BJ,
        pool=pool,
        open_B=state.open_B & _may_improve(running_BJ, pool, new, rules, search),
        stuck=jnp.all(ended),
        new=new,
        cache=state.cache,
    )
    return state, parents_BJ.reshape(B * J)


def _collect(state: BeamState, tokens, scores, ended, new: jax.Array, search: Search) -> Pool:
    """Adds ended candidates among a row's best J to its pool, unless the row is closed."""
    J = state.scores_BJ.shape[1]
    enters = ended & (jnp.arange(scores.shape[1]) < J)[None]
    full_B1 = search.until_full & jnp.all(state.pool.filled_BJ, axis=1, keepdims=True)
    scores = scores / new.astype(jnp.float32) ** search.length_penalty
    for forbidden in (full_B1, ~state.open_B[:, None], ~enters):
        scores += FORBIDDEN_SCORE * forbidden.astype(jnp.float32)
    fresh = Pool(tokens, scores, jnp.broadcast_to(new, scores.shape), enters)
    # The pool first: of equal scores, top_k keeps the one before.
    both = jax.tree.map(lambda *pools: jnp.concatenate(pools, axis=1), state.pool, fresh)
    _, kept_BJ = jax.lax.top_k(both.scores_BJ, J)
    return jax.tree.map(lambda x: _pick(x, kept_BJ), both)


def _may_improve(
    running_BJ, pool: Pool, new: jax.Array, rules: GenerationRules, search: Search
) -> jax.Array:
    """Returns whether the best beam of each row can still beat the worst of a full pool, bool [B].

    With `early_stopping="never"` it is scored at the length at which its score would be best; else
    at the current length, which is a heuristic if the penalty favors long continuations.
    """
    length = jnp.where(search.never & (search.length_penalty > 0), rules.max_new, new)
    best_B = running_BJ[:, 0] / length.astype(jnp.float32) ** search.length_penalty
    worst_B = jnp.where(jnp.all(pool.filled_BJ, axis=1), pool.scores_BJ[:, -1], FORBIDDEN_SCORE)
    return best_B > worst_B


def _pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """Selects entries of axis 1 by the row's indices [B, n]."""
    if x.ndim == 3:
        index = index[:, :, None]
    return jnp.take_along_axis(x, index, axis=1)
