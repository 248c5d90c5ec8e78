"""An adapter for EleutherAI's lm-evaluation-harness.

The harness is not a dependency: callers combine this class with its base class themselves.

    import lm_eval
    from lm_eval.api.model import LM
    from flaxformer_lite.inference.harness import HarnessModel

    class Ours(HarnessModel, LM):
        pass

    lm_eval.simple_evaluate(Ours(model, params, tokenizer), tasks=["lambada_openai"])
"""

import functools
import inspect
from typing import Any, Protocol

import flax.linen as nn

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.own_model import writable
from flaxformer_lite.inference.score import score
from flaxformer_lite.inference.task import ids_without_text, longest
from flaxformer_lite.types import Params

NEW_TOKENS = 256  # default of generate_until, if a task sets none
IGNORED = {"until", "max_gen_toks", "do_sample", "temperature"}


class Request(Protocol):
    """A request of the harness; `args` depend on its kind."""

    @property
    def args(self) -> tuple: ...


class HarnessModel:
    """Implements loglikelihood, loglikelihood_rolling and generate_until on the harness's requests.

    Attributes:
      model: a decoder; or an encoder-decoder, whose encoder reads the context, framed by the
        tokenizer's special tokens, and whose decoder writes the continuation, as in the harness.
      params: its weights.
      tokenizer: from `load_tokenizer`; or an object with encode(text) -> ids, decode(ids) -> text,
        bos_id (or None), eos_id, pad_id.
      batch_size: rows scored together.
      max_length: most tokens that the model sees at once; longer contexts are cut at the beginning.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Params,
        tokenizer: Any,
        *,
        batch_size: int = 8,
        max_length: int = 0,
    ):
        super().__init__()
        self.model = model
        self.params = params
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.prefix = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
        if self.prefix is None:
            raise ConfigError(
                "tokenizer: has neither bos_id nor eos_id; texts need one of them at their start."
            )
        cfg = writable(model, params).cfg
        self._two = is_encoder_decoder(cfg)
        self.max_length = max_length or min(longest(cfg), cfg.max_length)
        if not self.max_length:
            raise ConfigError("max_length: the model has none; say how many tokens it may see.")
        sized = hasattr(tokenizer, "vocab_size")
        self._without_text = ids_without_text(cfg, tokenizer) if sized else ()
        # The tokenizers of load_tokenizer add special tokens around a text, which must not precede
        # a continuation.
        frames = "special_tokens" in inspect.signature(tokenizer.encode).parameters
        self._encode = (
            functools.partial(tokenizer.encode, special_tokens=False)
            if frames
            else tokenizer.encode
        )

    def loglikelihood(self, requests: list[Request]) -> list[tuple[float, bool]]:
        """Returns (log-likelihood, whether greedy) of each (context, continuation)."""
        return self._score([self._split(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: list[Request]) -> list[float]:
        """Returns the log-likelihood of each whole text.

        Texts longer than max_length are read in pieces, with each token scored once, with the
        longest context that fits.
        """
        totals = []
        for request in requests:
            ids = [self.prefix, *self._encode(request.args[0])]
            pairs = []
            for start in range(1, len(ids), self.max_length):
                stop = min(start + self.max_length, len(ids))
                pairs.append((ids[max(0, stop - 1 - self.max_length) : start], ids[start:stop]))
            totals.append(sum(total for total, _ in self._score(pairs)))
        return totals

    def generate_until(self, requests: list[Request]) -> list[str]:
        """Returns the continuation of each (context, settings).

        It is cut before the first of its `until` strings.
        """
        texts = []
        for context, settings in (request.args for request in requests):
            until = settings.get("until", ())
            if isinstance(until, str):
                until = [until]
            new = min(settings.get("max_gen_toks", NEW_TOKENS), self.max_length - 1)
            ids = self._context(context)[-self._room(new) :]
            draws = {key: value for key, value in settings.items() if key not in IGNORED}
            temperature = (settings.get("temperature") or 1.0) if settings.get("do_sample") else 0.0
            written = generate(
                self.model,
                self.params,
                [ids],
                max_new_tokens=new,
                temperature=temperature,
                tokenizer=self.tokenizer,
                stop_strings=tuple(until),
                eos_token_id=self.tokenizer.eos_id,
                pad_token_id=self.tokenizer.pad_id,
                suppress_tokens=self._without_text,
                return_scores=True,
                **(draws if temperature else {}),
            )
            ids = written.sequences[0][1 if self._two else len(ids) :][
                : written.lengths[0]
            ].tolist()
            text = self.tokenizer.decode([token for token in ids if token != self.tokenizer.eos_id])
            texts.append(
                text[: min((text.index(stop) for stop in until if stop in text), default=len(text))]
            )
        return texts

    def _context(self, text: str) -> list[int]:
        encode = self.tokenizer.encode if self._two else self._encode
        return (encode(text) if text else []) or [self.prefix]

    def _room(self, written: int) -> int:
        """Returns how many tokens of a context fit beside the written ones."""
        return self.max_length if self._two else self.max_length - written

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encodes context and continuation: of a decoder as parts of one text, else separately.

        Spaces between them belong to the continuation.
        """
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        if self._two:
            return self._context(stripped), self._encode(continuation)
        head = self._encode(stripped) if stripped else []
        tail = self._encode(stripped + continuation)[len(head) :]
        return head or [self.prefix], tail or self._encode(continuation)

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Scores pairs in batches of similar length.

        The last batch is filled with repetitions, to keep its shape.
        """
        results: list[Any] = [None] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            rows = [pairs[i] for i in batch] + [pairs[batch[-1]]] * (self.batch_size - len(batch))
            heads = [head[max(0, len(head) - self._room(len(tail) - 1)) :] for head, tail in rows]
            scores = score(self.model, self.params, heads, [tail for _, tail in rows])
            for row, i in enumerate(batch):
                results[i] = float(scores.log_likelihood[row]), bool(scores.greedy[row])
        return results
