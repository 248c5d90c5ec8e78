"""Writing token by token computes what one pass over the whole text does."""

import functools
from collections.abc import Iterator

import jax
import numpy as np

from flaxformer_lite.contrib.verify.finding import ROUNDING, Finding, relative_difference
from flaxformer_lite.contrib.verify.subject import Inputs, Subject
from flaxformer_lite.inference.generate import Generation, generate
from flaxformer_lite.models.skeletons.build_layers import init_cache

NEW = 6  # tokens that are written
NATS = 1e-3  # of a log-probability, whose logits may be large


def check_cache(subject: Subject) -> Iterator[Finding]:
    """A text in chunks of any sizes has the hidden states of the whole text."""
    if not subject.cfg.decoder_layers or not subject.is_causal:
        return
    subject = subject.with_short_windows()
    ids = subject.draw(2)

    @functools.partial(jax.jit, static_argnames="method")
    def call(params, *args, method="decode", **options):
        return subject.model.apply({"params": params}, *args, method=method, **options)

    decode = functools.partial(call, subject.params)
    rest = []
    if subject.reads_source:
        rest = [call(subject.params, ids, method="encode")]

    whole = decode(ids, *rest)[0]
    first = int(np.random.default_rng(subject.seed).integers(3, 5))
    stops = np.cumsum([0, first, 1, 1, first])
    cache = init_cache(subject.cfg, len(ids), subject.length)
    chunks = []
    for start, stop in zip(stops, [*stops[1:], subject.length], strict=True):
        chunk, cache = decode(ids[:, start:stop], *rest, cache=cache)
        chunks.append(np.asarray(chunk))
        rest = [None for _ in rest]  # the cache has the keys and values of the source
    difference = relative_difference(np.concatenate(chunks, axis=1), whole)
    why = f"chunks that end at {', '.join(map(str, stops[1:]))} and {subject.length}"
    known = subject.known_reasons or (why,)
    yield Finding("cache equals the whole pass", difference, ROUNDING, *known)


def check_generation(subject: Subject) -> Iterator[Finding]:
    """A prompt is continued alone as in a batch, and as the whole pass says."""
    if not subject.writes:
        return
    if subject.is_family:
        subject = subject.with_short_windows()
    texts = subject.draw(2)[:, : subject.length - NEW].tolist()
    prompts = [texts[0], texts[1][:4]]
    start = 1
    if subject.is_family:
        start = subject.cfg.decoder_start_token_id or start
    together = _write(subject, prompts, start)
    alone = _write(subject, prompts[1:], start)
    due = np.asarray(alone.logprobs)[0]
    differs = np.flatnonzero(together.sequences[1, -NEW:] != alone.sequences[0, -NEW:])
    # Where two tokens are equally likely, rounding chooses, and the texts go on differently.
    until = min([*differs + 1, NEW])
    apart = np.abs(np.asarray(together.logprobs)[1] - due)[:until].max()
    why = f"nats by which the log-probability of one of {NEW} tokens differs"
    known = subject.known_reasons or (why,)
    yield Finding("generate alone equals in a batch", float(apart), NATS, *known)
    rows = np.zeros((2, subject.length), np.int32)
    begun = len(prompts[1])
    text = alone.sequences[0, -begun - NEW :]
    inputs: Inputs = {}
    if subject.reads_source:
        begun = 1
        text = alone.sequences[0]
        inputs["input_ids"] = np.asarray(prompts[1:], np.int32)
    rows[:, : len(text)] = text
    logits = subject.run(inputs | {subject.written: rows[: len(inputs) or 2]})["logits"][0]
    logprobs = np.asarray(jax.nn.log_softmax(logits[begun - 1 : begun - 1 + NEW]))
    chosen = logprobs[np.arange(NEW), text[begun:]]
    # each token is the likeliest, and as likely as it was when it was written
    whole = max(np.abs(due - chosen).max(), (logprobs.max(axis=1) - chosen).max())
    yield Finding("generate equals the whole pass", float(whole), NATS, *known)


def _write(subject: Subject, prompts: list[list[int]], start: int) -> Generation:
    begun = None
    if subject.reads_source:
        begun = [[start]] * len(prompts)
    return generate(
        subject.model,
        subject.params,
        prompts,
        decoder_input_ids=begun,
        max_new_tokens=NEW,
        return_scores=True,
    )
