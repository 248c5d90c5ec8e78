"""Writing token by token computes what one pass over the whole text does."""

import functools
import math
from collections.abc import Iterator

import jax
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.verify.finding import Finding, compare
from flaxformer_lite.contrib.verify.subject import Subject
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.score import score
from flaxformer_lite.models.skeletons.build_layers import init_cache

PROMPT_TOKENS = 4  # tokens of the shorter prompt
NEW_TOKENS = 6  # tokens that are written
MAX_NATS = 1e-3  # of a log-probability, whose logits may be large
STOPS = (4, 5, 6, 10, 23)  # where chunks of a text end


def check_cache(subject: Subject) -> Iterator[Finding]:
    """A text in chunks of several sizes has the hidden states of the whole text."""
    if not subject.cfg.decoder_layers or not subject.is_causal:
        return
    ids = subject.draw(2)

    @functools.partial(jax.jit, static_argnames="method")
    def call(params, *args, method="decode", **options):
        return subject.model.apply({"params": params}, *args, method=method, **options)

    source = [call(subject.params, ids, method="encode")] if subject.reads_source else []
    whole = call(subject.params, ids, *source)[0]
    cache = init_cache(subject.cfg, len(ids), subject.length)
    chunks = []
    stops = [stop for stop in STOPS if stop < subject.length]
    for chunk_ids in np.split(ids, stops, axis=1):
        chunk, cache = call(subject.params, chunk_ids, *source, cache=cache)
        chunks.append(np.asarray(chunk))
        source = [None for _ in source]  # the cache has the keys and values of the source
    why = f"chunks that end at {', '.join(map(str, stops))}"
    yield compare("cache equals the whole pass", np.concatenate(chunks, axis=1), whole, why)


def check_generation(subject: Subject) -> Iterator[Finding]:
    """Prompts are continued, alone and in a batch, with the probabilities of one whole pass."""
    cfg = subject.cfg
    if not cfg.decoder_layers or cfg.head != "lm" or not subject.is_causal:
        return
    if subject.length < PROMPT_TOKENS + NEW_TOKENS:
        raise ConfigError(
            f"texts of {subject.length} tokens have no room for {PROMPT_TOKENS} + {NEW_TOKENS}."
        )
    start = cfg.decoder_start_token_id or 1
    long, short = subject.draw(2).tolist()
    prompts = [short[:PROMPT_TOKENS], long[:-NEW_TOKENS]]
    why = f"nats by which the log-probability of one of {NEW_TOKENS} tokens differs"
    for where, some in (("alone", prompts[:1]), ("in a batch", prompts)):
        written = generate(
            subject.model,
            subject.params,
            some,
            decoder_input_ids=[[start]] * len(some) if subject.reads_source else None,
            max_new_tokens=NEW_TOKENS,
            return_scores=True,
        )
        texts = written.sequences[:, -NEW_TOKENS:].tolist()
        due = score(subject.model, subject.params, some, texts, decoder_start_token_id=start)
        nats = float(np.abs(written.logprobs - due.logprobs).max())
        if not due.greedy.all():  # it wrote a token that is not the likeliest
            nats = math.inf
        yield Finding(f"generate {where} equals the whole pass", nats, MAX_NATS, why)
