"""Speculative decoding: the model reads several guessed tokens at once and keeps the right ones.

The guess is copied from an earlier place in the row where its last tokens stood as well (prompt
lookup: Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding), or written by a small draft
model (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).

Guesses change the speed and not the text: greedy decoding and prompt lookup keep the tokens that
the model itself chooses, with the random numbers of plain generation; tokens sampled from a draft
are accepted or drawn again so that they have the model's distribution.

Logits of several tokens computed together differ from a single token's by rounding, about 1e-6.
If the two best tokens are that close, either may be written.
"""

import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference import engine
from flaxformer_lite.inference.engine import Caches, Generator, Params, PromptRows
from flaxformer_lite.inference.own_model import OwnModel
from flaxformer_lite.inference.prompts import max_tokens
from flaxformer_lite.inference.rules import (
    GenerationRules,
    Number,
    choose_tokens,
    constrain_logits,
    is_stop_token,
    key_at,
    scale_logits,
)
from flaxformer_lite.inference.sample import SampleState
from flaxformer_lite.inference.task import GenerationTask
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.functions import sampling
from flaxformer_lite.nn.modules.cache import LayerCache
from flaxformer_lite.types import Array

MAX_NGRAM = 3  # the longest sequence of last tokens that a lookup compares
# Folded into the key of a token, for random numbers other than the one that chooses the token.
DRAFT_STREAM = 1
ACCEPT_STREAM = 2
REPLACE_STREAM = 3
Places = tuple[jax.Array, jax.Array]  # of N tokens: int32, their rows and their numbers in them


class Draft(flax.struct.PyTreeNode):
    """A smaller model that writes the guesses."""

    params: Params
    model: nn.Module = flax.struct.field(pytree_node=False)


class GuessLoop(flax.struct.PyTreeNode):
    """The constants of a loop that writes rows.

    Attributes:
      model, params: the model that writes.
      draft: the model that guesses; None for prompt lookup.
      rows: the start of each prompt, and the mask of the encoded sources.
      source_BS: int32, the tokens of an encoder's input, in which guesses are looked up too.
      rules: the generation settings as arrays.
      seed: as in `sample.proceed`.
      prompt: the number of columns before the first new token.
      guessed: K, the number of tokens in a guess.
    """

    params: Params
    draft: Draft | None
    rows: PromptRows
    source_BS: Array | None
    rules: GenerationRules
    seed: Number
    model: nn.Module = flax.struct.field(pytree_node=False)
    prompt: int = flax.struct.field(pytree_node=False)
    guessed: int = flax.struct.field(pytree_node=False)


def check(model: Generator, draft: Draft | None, task: GenerationTask) -> None:
    """Refuses models for which guesses would change the text, before anything is compiled.

    Raises:
      ConfigError: a model has a layer that cannot go back to an earlier token, or the draft does
        not fit the model.
    """
    if not task.settings.guessed:
        return
    _check_rolls_back(model, "model")
    if draft is None:
        return
    if engine.is_encoder_decoder(model.cfg):
        raise ConfigError(
            f"draft: {model.cfg.family} is an encoder-decoder, which no draft model follows; use"
            " prompt_lookup_num_tokens, which copies from the source too."
        )
    drafted = getattr(draft.model, "cfg", None)
    if drafted is None or engine.is_encoder_decoder(drafted) or drafted.head != "lm":
        raise ConfigError(
            "draft: must be (model, params) of a decoder of this package with head='lm'."
        )
    _check_rolls_back(draft.model, "draft")
    if drafted.vocab_size != model.cfg.vocab_size:
        raise ConfigError(
            f"draft: has a vocabulary of {drafted.vocab_size}, the model {model.cfg.vocab_size};"
            " take a draft with the model's tokenizer, and with a table of the same size."
        )
    room = max_tokens(drafted)
    needed = task.prompt.tokens_BT.shape[1] - int(task.prompt.start_B.min()) + task.max_new
    if needed > room:
        raise ConfigError(
            f"draft: its position table ends at {room}, where prompt and continuation have"
            f" {needed} tokens; ask for fewer new tokens, or take a draft with a longer one."
        )


def _check_rolls_back(model: Generator, name: str) -> None:
    family = model.cfg.family
    if isinstance(model, OwnModel):
        raise ConfigError(
            f"{name}: {family} has no cache, so that guesses gain nothing; leave draft and"
            " prompt_lookup_num_tokens out."
        )
    caches = jax.eval_shape(lambda: build_layers.init_cache(model.cfg, 1, 1))
    if not all(cache is None or isinstance(cache, LayerCache) for cache in caches):
        raise ConfigError(
            f"{name}: {family} has a layer that keeps a state, which cannot go back to the token"
            " before a wrong guess; leave draft and prompt_lookup_num_tokens out."
        )
    pattern = build_layers.stack(model.cfg, "decoder").pattern
    readers = [layer.feed_forward for layer in pattern if layer.feed_forward is not None]
    if not all(reader.reads_one_token for reader in readers):
        raise ConfigError(
            f"{name}: {family} has experts with limited room, where a wrong guess takes the room of"
            " a right token; leave draft and prompt_lookup_num_tokens out."
        )


@functools.partial(jax.jit, donate_argnames=("state",))
def proceed(loop: GuessLoop, state: SampleState, until: jax.Array) -> SampleState:
    """Writes tokens until each row has at least `until` new ones, or all rows are done.

    Rows accept different numbers of tokens, so that `state.lengths_B` differ, and each row has
    its own slots in the caches.

    Returns:
      The new state; columns beyond the last token of a row hold padding.
    """

    def unfinished(state: SampleState) -> jax.Array:
        return jnp.any(~state.done_B & (state.lengths_B < until))

    def write(state: SampleState) -> SampleState:
        if loop.draft is None:
            return _guess_from_text(loop, state)
        return _guess_with_draft(loop, loop.draft, state)

    state = jax.lax.while_loop(unfinished, write, state)
    return _without_rejected(loop, state, until)


def _verify(
    loop: GuessLoop,
    state: SampleState,
    guess_BK: jax.Array,
    draft_logits_BKV: jax.Array | None = None,
) -> SampleState:
    """Reads the last token and K guessed tokens, and appends 1 to K + 1 tokens."""
    rules = loop.rules
    length = guess_BK.shape[1] + 1
    column_B = loop.prompt + state.lengths_B
    tokens_BS = _write_rows(state.tokens_BS, guess_BK, column_B)
    window_BT = _columns(tokens_BS, column_B - 1, length)
    slots = tokens_BS.shape[1]
    x_BTD, cache = engine.read_window(
        loop.model, loop.params, window_BT, loop.rows, state.cache, column_B - 1, slots
    )
    state = state.replace(cache=cache)
    logits_BTV = engine.project(loop.model, loop.params, x_BTD)
    places = _places(state.lengths_B, length)
    allowed_NV = _constrain(loop, logits_BTV, tokens_BS, places)
    if draft_logits_BKV is None:
        token_N = choose_tokens(rules, allowed_NV, _keys(loop.seed, places))
        token_BT = token_N.reshape(-1, length)
        accepted_BK = token_BT[:, :-1] == guess_BK
    else:
        allowed_BTV = allowed_NV.reshape(logits_BTV.shape)
        token_BT, accepted_BK = _accept_or_replace(
            rules, allowed_BTV, draft_logits_BKV, guess_BK, loop.seed, state.lengths_B
        )
    # Guesses after the first wrong one were read behind a wrong token, so that none of them counts.
    accepted_B = jnp.cumprod(accepted_BK.astype(jnp.int32), axis=1).sum(axis=1)
    return _append(rules, state, token_BT, accepted_B + 1, column_B, logits_BTV)


def _guess_from_text(loop: GuessLoop, state: SampleState) -> SampleState:
    """Guesses by prompt lookup; the model reads a single token where there is nothing to guess."""
    text_BS = state.tokens_BS
    columns_1S = jnp.arange(text_BS.shape[1], dtype=jnp.int32)[None]
    is_token_BS = columns_1S >= loop.rows.start_B[:, None]
    end_B = loop.prompt + state.lengths_B
    if loop.source_BS is not None:
        text_BS = jnp.concatenate([loop.source_BS, text_BS], axis=1)
        source_mask_BS = jnp.asarray(loop.rows.source_mask_BS)
        is_token_BS = jnp.concatenate([source_mask_BS, is_token_BS], axis=1)
        end_B += loop.source_BS.shape[1]
    guess_BK, found_B = _look_up(text_BS, is_token_BS, end_B, loop.guessed)
    # An encoder may have a larger vocabulary than the decoder.
    guess_BK = jnp.minimum(guess_BK, loop.model.cfg.of_decoder.vocab_size - 1)
    return jax.lax.cond(
        jnp.any(found_B & ~state.done_B & (state.lengths_B < loop.rules.max_new)),
        lambda: _verify(loop, state, guess_BK),
        lambda: _verify(loop, state, guess_BK[:, :0]),
    )


def _guess_with_draft(loop: GuessLoop, draft: Draft, state: SampleState) -> SampleState:
    """Guesses the draft's continuation of each row, under the rules of the model."""
    rows = PromptRows(loop.rows.start_B)
    column_B = loop.prompt + state.lengths_B
    slots = state.tokens_BS.shape[1]

    def read(tokens_BS: jax.Array, cache: Caches | None, at_B: jax.Array) -> tuple:
        token_B1 = _columns(tokens_BS, at_B, 1)
        return engine.read_window(draft.model, draft.params, token_B1, rows, cache, at_B, slots)

    def write_next(carry: tuple, done: jax.Array) -> tuple[tuple, jax.Array]:
        tokens_BS, cache = carry
        x_B1D, cache = read(tokens_BS, cache, column_B + done - 1)
        logits_B1V = engine.project(draft.model, draft.params, x_B1D)
        places = _places(state.lengths_B + done, 1)
        logits_BV = scale_logits(loop.rules, _constrain(loop, logits_B1V, tokens_BS, places))
        if loop.rules.temperature is None:
            token_B = sampling.likeliest(logits_BV)
        else:
            token_B = sampling.draw(logits_BV, _keys(loop.seed, places, DRAFT_STREAM))
        return (_write_rows(tokens_BS, token_B[:, None], column_B + done), cache), logits_BV

    # The draft has not read the last token of a guess that was accepted whole.
    _, cache = read(state.tokens_BS, state.draft_cache, column_B - 2)
    carry = (state.tokens_BS, cache)
    (tokens_BS, cache), logits_KBV = jax.lax.scan(write_next, carry, jnp.arange(loop.guessed))
    state = state.replace(draft_cache=cache)
    guess_BK = _columns(tokens_BS, column_B, loop.guessed)
    if loop.rules.temperature is None:
        return _verify(loop, state, guess_BK)
    return _verify(loop, state, guess_BK, jnp.swapaxes(logits_KBV, 0, 1))


def _without_rejected(loop: GuessLoop, state: SampleState, until: jax.Array) -> SampleState:
    """Replaces rejected tokens behind the end of each row by padding, and updates `new`."""
    columns_1S = jnp.arange(state.tokens_BS.shape[1], dtype=jnp.int32)[None]
    written_BS = columns_1S < (loop.prompt + state.lengths_B)[:, None]
    # Rows that are done set no limit; if all are, the longest one does.
    fewest = jnp.min(jnp.where(state.done_B, loop.rules.max_new, state.lengths_B))
    reached = jnp.minimum(fewest, jnp.max(state.lengths_B))
    tokens_BS = jnp.where(written_BS, state.tokens_BS, loop.rules.pad)
    logprobs_BS = state.logprobs_BS
    if logprobs_BS is not None:
        logprobs_BS = jnp.where(written_BS, logprobs_BS, 0.0)
    new = jnp.minimum(until, reached)
    return state.replace(tokens_BS=tokens_BS, logprobs_BS=logprobs_BS, new=new)


def _append(
    rules: GenerationRules,
    state: SampleState,
    token_BT: jax.Array,
    count_B: jax.Array,
    column_B: jax.Array,
    logits_BTV: jax.Array,
) -> SampleState:
    """Appends the first `count_B` of T tokens to each row, or fewer, up to one that ends it.

    The other tokens are written behind them, where later calls overwrite them.
    """
    index_1T = jnp.arange(token_BT.shape[1], dtype=jnp.int32)[None]
    count_B = jnp.minimum(count_B, rules.max_new - state.lengths_B)
    ends_BT = is_stop_token(rules, token_BT) & (index_1T < count_B[:, None])
    ended_B = jnp.any(ends_BT, axis=1)
    count_B = jnp.where(ended_B, jnp.argmax(ends_BT, axis=1).astype(jnp.int32) + 1, count_B)
    assert state.reads_B is not None, "generate counts reads of guesses"
    logprobs_BS = state.logprobs_BS
    if logprobs_BS is not None:
        chosen_BT1 = jnp.take_along_axis(logits_BTV, token_BT[:, :, None], axis=2)
        logprob_BT = (chosen_BT1 - jax.nn.logsumexp(logits_BTV, axis=2, keepdims=True))[:, :, 0]
        logprobs_BS = _write_rows(logprobs_BS, logprob_BT, column_B)
    return state.replace(
        tokens_BS=_write_rows(state.tokens_BS, token_BT, column_B),
        logprobs_BS=logprobs_BS,
        lengths_B=state.lengths_B + jnp.where(state.done_B, 0, count_B),
        reads_B=state.reads_B + (~state.done_B & (count_B > 0)).astype(jnp.int32),
        done_B=state.done_B | ended_B,
    )


def _look_up(
    text_BS: jax.Array, is_token_BS: jax.Array, end_B: jax.Array, guessed: int
) -> tuple[jax.Array, jax.Array]:
    """Guesses that the last tokens of a row are followed by the same tokens as earlier in the text.

    Of the earlier occurrences, the one that agrees in most of the last MAX_NGRAM tokens is used,
    and of several such, the latest.

    Args:
      text_BS: int32, the tokens.
      is_token_BS: bool, False for padding.
      end_B: int32, the column after the last token.
      guessed: K, the number of tokens to guess.

    Returns:
      The guess, int32 [B, K], and whether at least two tokens agree, bool [B].
    """
    S = text_BS.shape[1]
    index_1S = jnp.arange(S, dtype=jnp.int32)[None]
    known_BS = jnp.where(is_token_BS, text_BS, -1 - index_1S)  # padding is like no other column
    same_BS = index_1S < end_B[:, None] - 1
    agreeing_BS = jnp.zeros(text_BS.shape, jnp.int32)
    for back in range(MAX_NGRAM):
        last_B1 = jnp.take_along_axis(known_BS, jnp.maximum(end_B - 1 - back, 0)[:, None], axis=1)
        same_BS &= (index_1S >= back) & (jnp.roll(known_BS, back, axis=1) == last_B1)
        agreeing_BS += same_BS.astype(jnp.int32)
    best_B = jnp.argmax(agreeing_BS * S + index_1S, axis=1).astype(jnp.int32)
    # If the guess would reach beyond the end of the text, the text repeats itself there: the guess
    # continues the repetition.
    period_B1 = jnp.maximum(end_B - 1 - best_B, 1)[:, None]
    ahead_BK = jnp.arange(guessed, dtype=jnp.int32)[None] % period_B1
    guess_BK = jnp.take_along_axis(text_BS, best_B[:, None] + 1 + ahead_BK, axis=1, mode="clip")
    return guess_BK, jnp.max(agreeing_BS, axis=1) >= 2


def _accept_or_replace(
    rules: GenerationRules,
    logits_BTV: jax.Array,
    draft_logits_BKV: jax.Array,
    guess_BK: jax.Array,
    seed: jax.Array,
    new_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Accepts a token x, which the draft drew from q, with probability min(1, p(x) / q(x)).

    The first rejected token is replaced by one drawn from max(p - q, 0), normalized. If all are
    accepted, one more token is drawn from p. Each token then has the model's distribution p, given
    the tokens before it (Leviathan et al. 2023, section 2.3 and appendix A.1).

    Returns:
      The tokens, int32 [B, K + 1], and which guessed ones are accepted, bool [B, K].
    """
    batch, length, vocab = logits_BTV.shape
    places = _places(new_B, length)
    p_BTV = scale_logits(rules, logits_BTV.reshape(-1, vocab)).reshape(logits_BTV.shape)
    p_BTV = jax.nn.softmax(p_BTV)
    p_BKV = p_BTV[:, :-1]
    q_BKV = jax.nn.softmax(draft_logits_BKV)
    uniform_N = jax.vmap(jax.random.uniform)(_keys(seed, places, ACCEPT_STREAM))
    uniform_BK = uniform_N.reshape(batch, length)[:, :-1]
    guess_BK1 = guess_BK[:, :, None]
    p_BK = jnp.take_along_axis(p_BKV, guess_BK1, axis=2)[:, :, 0]
    q_BK = jnp.take_along_axis(q_BKV, guess_BK1, axis=2)[:, :, 0]
    # A product and no quotient p / q, which would be NaN where both underflow to zero.
    accepted_BK = uniform_BK * q_BK < p_BK
    residual_BKV = jnp.maximum(p_BKV - q_BKV, 0.0)
    # Without any residual, p equals q, and only rounding can reject a token: draw from p.
    residual_BKV = jnp.where(jnp.any(residual_BKV > 0, axis=2, keepdims=True), residual_BKV, p_BKV)
    weights_BTV = jnp.concatenate([residual_BKV, p_BTV[:, -1:]], axis=1)
    weights_NV = weights_BTV.reshape(-1, vocab)
    drawn_N = sampling.draw(jnp.log(weights_NV), _keys(seed, places, REPLACE_STREAM))
    drawn_BT = drawn_N.reshape(batch, length)
    token_BK = jnp.where(accepted_BK, guess_BK, drawn_BT[:, :-1])
    return jnp.concatenate([token_BK, drawn_BT[:, -1:]], axis=1), accepted_BK


def _places(new_B: jax.Array, length: int) -> Places:
    """Returns the row and the number of T new tokens of each row, which begin at `new_B`."""
    row_N = jnp.repeat(jnp.arange(len(new_B), dtype=jnp.int32), length)
    new_BT = new_B[:, None] + jnp.arange(length, dtype=jnp.int32)[None]
    return row_N, new_BT.reshape(-1)


def _constrain(
    loop: GuessLoop, logits_BTV: jax.Array, tokens_BS: jax.Array, places: Places
) -> jax.Array:
    """Applies the rules to N = B * T positions; each sees the tokens before it."""
    row_N, new_N = places
    logits_NV = logits_BTV.reshape(-1, logits_BTV.shape[-1])
    start_N = jnp.asarray(loop.rows.start_B)[row_N]
    return constrain_logits(
        loop.rules, logits_NV, tokens_BS[row_N], start_N, loop.prompt + new_N, new_N
    )


def _keys(seed: jax.Array, places: Places, purpose: int | None = None) -> jax.Array:
    """Returns the random key of each new token, [N], from its number in the row."""
    keys_N = jax.vmap(key_at, in_axes=(None, 0, 0))(seed, *places)
    if purpose is None:
        return keys_N
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys_N, purpose)


def _columns(x_BS: jax.Array, first_B: jax.Array, length: int) -> jax.Array:
    """Returns `length` columns of each row, beginning at `first_B`."""

    def of_row(x_S: jax.Array, first: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x_S, first, length)

    return jax.vmap(of_row)(x_BS, first_B)


def _write_rows(x_BS: jax.Array, new_BT: jax.Array, first_B: jax.Array) -> jax.Array:
    """Overwrites columns of each row, beginning at `first_B`."""
    return jax.vmap(jax.lax.dynamic_update_slice_in_dim, in_axes=(0, 0, 0, None))(
        x_BS, new_BT, first_B, 0
    )
