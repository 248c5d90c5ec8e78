"""An adapter for EleutherAI's lm-evaluation-harness.

The harness is not a dependency: `flaxformer_lite.contrib.lm_eval.model` joins this class with its
base class, and so does code of your own:

    import lm_eval
    from lm_eval.api.model import LM
    from flaxformer_lite.contrib.lm_eval.harness import HarnessModel

    class Ours(HarnessModel, LM):
        pass

    lm_eval.simple_evaluate(Ours(model, params, tokenizer), tasks=["lambada_openai"])
"""

import inspect
import json
from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn

from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.own_model import wrap_module
from flaxformer_lite.inference.prompts import ids_without_text, max_tokens
from flaxformer_lite.inference.published import DRAWS
from flaxformer_lite.inference.score import score
from flaxformer_lite.types import Params

NEW_TOKENS = 256  # default of generate_until, if a task sets none
# The names by which a task may give the number of new tokens; the first one present is used.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
HANDLED = {*LENGTHS, "until", "do_sample", "temperature"}


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
      batch_size: rows scored or written together.
      max_length: most tokens that the model sees at once; longer contexts are cut at the beginning.
      generation: settings of generate_until where a task sets none, as `published_settings` reads
        them; those of sampling count only for tasks that sample.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Params,
        tokenizer: Any,
        *,
        batch_size: int = 8,
        max_length: int = 0,
        generation: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.model = model
        self.params = params
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.generation = dict(generation or {})
        self.prefix = tokenizer.bos_id
        if self.prefix is None:
            self.prefix = tokenizer.eos_id
        if self.prefix is None:
            raise ConfigError(
                "tokenizer: has neither bos_id nor eos_id; texts need one of them at their start."
            )
        cfg = wrap_module(model, params).cfg
        self._two = is_encoder_decoder(cfg)
        self.max_length = max_length or min(max_tokens(cfg), cfg.max_length)
        if not self.max_length:
            raise ConfigError("max_length: the model has none; say how many tokens it may see.")
        sized = hasattr(tokenizer, "vocab_size")
        self._without_text = ids_without_text(cfg, tokenizer) if sized else ()
        # The tokenizers of load_tokenizer add special tokens around a text.
        self._frames = "special_tokens" in inspect.signature(tokenizer.encode).parameters
        mark = "bos"
        if tokenizer.bos_id is None:
            mark = "eos"
        self._start = getattr(tokenizer, "tokens", {}).get(mark)

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

        It is cut before the first of its `until` strings. Requests with the same settings are
        written together, the longest first.
        """
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        texts = [""] * len(requests)
        for group in groups.values():
            settings = requests[group[0]].args[1]
            contexts = {number: self._context(requests[number].args[0]) for number in group}
            order = sorted(group, key=lambda number: -len(contexts[number]))
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                written = self._write([contexts[number] for number in batch], settings)
                for number, text in zip(batch, written, strict=True):
                    texts[number] = text
        return texts

    def _write(self, contexts: list[list[int]], settings: Mapping[str, Any]) -> list[str]:
        """Continues contexts by the settings of their task."""
        until = settings.get("until") or ()
        if isinstance(until, str):
            until = [until]
        stops = tuple(filter(None, until))
        lengths = [settings[name] for name in LENGTHS if settings.get(name) is not None]
        most = int(lengths[0]) if lengths else NEW_TOKENS
        new = min(most, self.max_length - 1)
        temperature = float(settings.get("temperature") or 0.0)
        is_sampled = settings.get("do_sample")
        if is_sampled is None:
            is_sampled = temperature > 0
        options = {"pad_token_id": self.tokenizer.pad_id} | self.generation
        options["eos_token_id"] = self._ends()
        if is_sampled:
            options |= {key: value for key, value in settings.items() if key not in HANDLED}
            options["temperature"] = temperature or 1.0
        else:
            options = {key: value for key, value in options.items() if key not in DRAWS}
        rows = [ids[-self._room(new) :] for ids in contexts]
        # Repetitions fill the last batch, to keep its shape.
        rows += [rows[-1]] * (self.batch_size - len(rows))
        written = generate(
            self.model,
            self.params,
            rows,
            max_new_tokens=new,
            tokenizer=self.tokenizer,
            stop_strings=stops,
            suppress_tokens=(*options.pop("suppress_tokens", ()), *self._without_text),
            return_scores=True,
            **options,
        )
        start = written.sequences.shape[1] - written.lengths.max()
        texts = []
        for row in range(len(contexts)):
            ids = written.sequences[row, start : start + written.lengths[row]].tolist()
            text = self.tokenizer.decode([token for token in ids if token != self.tokenizer.eos_id])
            ends = [text.index(stop) for stop in stops if stop in text]
            texts.append(text[: min(ends, default=len(text))])
        return texts

    def _ends(self) -> tuple[int, ...] | None:
        """Returns the tokens that end a text: the tokenizer's, and those of the settings."""
        named = self.generation.get("eos_token_id")
        several = named if isinstance(named, list | tuple) else [named]
        ends = {end for end in (*several, self.tokenizer.eos_id) if end is not None}
        return tuple(sorted(ends)) or None

    def _encode(self, text: str, *, framed: bool = True) -> list[int]:
        """Encodes a text, as the harness's models of transformers do.

        The tokenizer's special tokens frame it, such as Llama's <s>, unless it begins with one.
        """
        if not self._frames:
            return self.tokenizer.encode(text)
        begun = self._start is not None and text.startswith(self._start)
        return self.tokenizer.encode(text, special_tokens=framed and not begun)

    def _context(self, text: str) -> list[int]:
        ids = []
        if text:
            ids = self._encode(text)
        return ids or [self.prefix]

    def _room(self, written: int) -> int:
        """Returns how many tokens of a context fit beside the written ones."""
        if self._two:
            return self.max_length
        return self.max_length - written

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encodes context and continuation: of a decoder as parts of one text, else separately.

        Spaces between them belong to the continuation.
        """
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        if not stripped:
            tail = self._encode(continuation, framed=False)
            if len(tail) > 1 and tail[0] == self.prefix:
                return tail[:1], tail[1:]
            return [self.prefix], tail
        head = self._context(stripped)
        if self._two:
            return head, self._encode(continuation, framed=False)
        tail = self._encode(stripped + continuation)[len(head) :]
        return head, tail or self._encode(continuation, framed=False)

    def _score(self, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Scores pairs in batches of similar length.

        The last batch is filled with repetitions, to keep its shape.
        """
        longest_tail = max((len(tail) for _, tail in pairs), default=0)
        if longest_tail > self.max_length:
            raise ConfigError(
                f"a continuation has {longest_tail} tokens, and the model reads at most"
                f" max_length={self.max_length}; leave the task out, or raise max_length."
            )
        results: list[Any] = [None] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]) - len(pairs[i][1]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            rows = [pairs[i] for i in batch] + [pairs[batch[-1]]] * (self.batch_size - len(batch))
            heads = []
            for head, tail in rows:
                room = self._room(len(tail) - 1)
                heads.append(head[max(0, len(head) - room) :])
            scores = score(self.model, self.params, heads, [tail for _, tail in rows])
            for row, i in enumerate(batch):
                results[i] = float(scores.log_likelihood[row]), bool(scores.greedy[row])
        return results
