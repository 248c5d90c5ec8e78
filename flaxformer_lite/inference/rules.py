"""Settings in the form of the compiled loop.

Numbers are arrays, so a new temperature does not recompile; a rule that is off is None, and costs
nothing.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.inference.settings import Settings
from flaxformer_lite.nn.functions import sampling

Number = Any  # numpy's outside of jit, jax's within


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class GenerationRules:
    """The rules of generation; see `Settings`.

    `max_new` and `min_new` count new tokens, `eos_E` are the stop tokens.
    """

    max_new: Number
    pad: Number
    eos_E: Number | None
    min_new: Number | None
    suppress_U: Number | None
    forced_bos: Number | None
    forced_eos: Number | None
    repetition_penalty: Number | None
    temperature: Number | None
    top_k: Number | None
    top_p: Number | None
    min_p: Number | None
    no_repeat_ngram: int = field(metadata={"static": True})


def rules_of(s: Settings, max_new: int, min_new: int) -> GenerationRules:
    def number(value: float, off: float) -> Number | None:
        return None if value == off else np.float32(value)

    def tokens(value: int | tuple[int, ...] | None) -> Number | None:
        return None if value in (None, ()) else np.asarray(value, np.int32)

    return GenerationRules(
        max_new=np.int32(max_new),
        pad=np.int32(s.pad_token_id),
        eos_E=tokens(s.eos),
        min_new=np.int32(min_new) if s.eos and min_new else None,
        suppress_U=tokens(s.suppress_tokens),
        forced_bos=tokens(s.forced_bos_token_id),
        forced_eos=tokens(s.forced_eos_token_id),
        repetition_penalty=number(s.repetition_penalty, 1.0),
        temperature=number(s.temperature, 0.0),
        top_k=number(s.top_k, 0),
        top_p=number(s.top_p, 1.0),
        min_p=number(s.min_p, 0.0),
        no_repeat_ngram=s.no_repeat_ngram_size,
    )


def constrain_logits(
    rules: GenerationRules,
    logits_BV: jax.Array,
    tokens_BT: jax.Array,
    start_B: jax.Array,
    length: jax.Array,
    new: jax.Array,
) -> jax.Array:
    """Applies the rules on which tokens may come next, in transformers' order.

    The input is logits or log-probabilities.

    Columns start .. length - 1 of a row of `tokens_BT` are written, the last `new` of them by the
    model; both are scalars, or one for each row, [B].
    """
    new = jnp.reshape(new, (-1, 1))
    if rules.repetition_penalty is not None:
        logits_BV = sampling.repetition_penalty(
            logits_BV, tokens_BT, start_B, length, rules.repetition_penalty
        )
    if rules.no_repeat_ngram:
        logits_BV = sampling.no_repeat_ngram(
            logits_BV, tokens_BT, start_B, length, rules.no_repeat_ngram
        )
    if rules.suppress_U is not None:
        logits_BV = sampling.suppress(logits_BV, rules.suppress_U)
    if rules.min_new is not None and rules.eos_E is not None:
        logits_BV = jnp.where(
            new < rules.min_new, sampling.suppress(logits_BV, rules.eos_E), logits_BV
        )
    if rules.forced_bos is not None:
        logits_BV = jnp.where(new == 0, sampling.force(logits_BV, rules.forced_bos), logits_BV)
    if rules.forced_eos is not None:
        logits_BV = jnp.where(
            new == rules.max_new - 1, sampling.force(logits_BV, rules.forced_eos), logits_BV
        )
    return logits_BV


def choose_tokens(rules: GenerationRules, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
    """Chooses the next token of each row, int32 [B].

    It is the likeliest, or a draw if there is a temperature.
    """
    if rules.temperature is None:
        return sampling.likeliest(logits_BV)
    return sampling.draw(scale_logits(rules, logits_BV), keys_B)


def scale_logits(rules: GenerationRules, logits_BV: jax.Array) -> jax.Array:
    """Returns the logits whose softmax is drawn from: those given, if there is no temperature."""
    if rules.temperature is None:
        return logits_BV
    # The order is transformers': the nucleus is of the probabilities at this temperature.
    logits_BV = sampling.temperature(logits_BV, rules.temperature)
    if rules.top_k is not None:
        logits_BV = sampling.top_k(logits_BV, rules.top_k)
    if rules.top_p is not None:
        logits_BV = sampling.top_p(logits_BV, rules.top_p)
    if rules.min_p is not None:
        logits_BV = sampling.min_p(logits_BV, rules.min_p)
    return logits_BV


def key_at(seed: Number, row: jax.Array, new: jax.Array) -> jax.Array:
    """Returns the random key of a row's new token of this number."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), new)


def is_stop_token(rules: GenerationRules, tokens: jax.Array) -> jax.Array:
    """Returns whether each token is a stop token; bool of the same shape."""
    if rules.eos_E is None:
        return jnp.zeros(tokens.shape, bool)
    return jnp.isin(tokens, rules.eos_E)
