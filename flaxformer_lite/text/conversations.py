"""Conversations as tokens: rendered by a chat template, with the tokens of each answer marked."""

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.rows import ANSWERS, Messages
from flaxformer_lite.text import chat_template
from flaxformer_lite.text.tokenizer import Tokenizer


class Conversation(NamedTuple):
    """The tokens of a conversation."""

    ids: np.ndarray  # [T] int32
    # [T] int32, 1 for tokens of answers, from their first letter to the token that ends the turn
    answers: np.ndarray
    last: int  # the number of tokens before the last answer
    end: int | None  # the special token that ends a turn; None if the template has none


def encode(
    tokenizer: Tokenizer, template: str, chats: Sequence[Messages], *, known: Sequence[bool]
) -> list[Conversation]:
    """Renders and tokenizes conversations that end with an answer.

    Spaces around answers are dropped.

    Each answer is rendered between two marks that nobody can guess, so that its place is exact,
    whatever the template writes around it. What the template writes after the last one ends a turn:
    to its first special token, if it has one, that belongs to each answer.

    Args:
      tokenizer: gives the special tokens.
      template: Jinja source, rendered with `messages`, `bos_token`, `eos_token` and `pad_token`.
      chats: conversations of messages {"role", "content"}, the last of role assistant.
      known: whether the last answer is known, or has no tokens to learn from.

    Raises:
      ConfigError: as in `text/chat_template.py`; or the template leaves out or repeats an
        answer.
    """
    # digits pass through every filter
    guard = _random_digits()
    begin = _random_digits()
    end = _random_digits()
    spelling = {i: token for token, i in tokenizer.spelled.items()}
    specials = {}
    for role in ("bos", "eos", "pad"):
        specials[f"{role}_token"] = spelling.get(tokenizer.ids.get(role, -1), "")
    batch = []
    for messages in chats:
        made = chat_template.guarded(messages, tokenizer.special_pattern, guard)
        for message in made:
            if message["role"] == ANSWERS:
                message["content"] = f"{begin}{message['content'].strip()}{end}"
        batch.append({"messages": made, "add_generation_prompt": False, **specials})
    texts = chat_template.render(template, batch)
    made = []
    for number, (text, messages, learns) in enumerate(zip(texts, chats, known, strict=True)):
        parts = re.split(f"{begin}|{end}", text)
        answers = sum(message["role"] == ANSWERS for message in messages)
        if len(parts) != 1 + 2 * answers:
            raise ConfigError(
                f"row {number + 1}: the chat template leaves out or repeats an answer of it; give"
                " each answer a row of its own, or choose another objective.template."
            )
        made.append(_conversation(tokenizer, parts, guard, learns))
    return made


def _random_digits() -> str:
    """Returns a text that no conversation holds."""
    # With the highest bit, so that no number is short enough to stand in a text by chance.
    return str(secrets.randbits(64) | 1 << 63)


def _conversation(tokenizer: Tokenizer, parts: list[str], guard: str, learns: bool) -> Conversation:
    """Encodes the text of parts, alternating between prompts and answers."""
    tail = parts[-1]
    end = None
    match = tokenizer.special_pattern.search(tail)
    if match:
        tail = tail[: match.end()]
        end = tokenizer.spelled[match[0]]
    spans = tokenizer.encode_spelled("".join(parts), guard)
    lengths = [len(part.replace(guard, "")) for part in parts]
    edges = np.cumsum([0, *lengths])
    answers = np.zeros(len(spans.ids), np.int32)
    starts = edges[1:-1:2]
    for number, (start, stop) in enumerate(zip(starts, edges[2::2], strict=True)):
        if parts[2 * number + 2].startswith(tail):
            stop += len(tail)
        if learns or number < len(starts) - 1:
            answers |= (spans.end > start) & (spans.start < stop) & (spans.end > spans.start)
    return Conversation(spans.ids, answers, int(np.sum(spans.end <= starts[-1])), end)
