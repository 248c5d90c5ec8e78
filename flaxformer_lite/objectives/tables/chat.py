"""The base of tasks on conversations: chat templates, and generation of the next answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import Size
from flaxformer_lite.files.read import Json
from flaxformer_lite.objectives.rows import ANSWERS, Messages, TableRecords
from flaxformer_lite.objectives.tables.task import Row
from flaxformer_lite.objectives.tables.writing import Limits, ScoredBy, WritingTask

# For models without a template: each turn under its role; answers end with the end-of-text token.
PLAIN = (
    "{% for m in messages %}{{ m.role ~ ':\n' ~ m.content }}{% if m.role == 'assistant' %}{{"
    " eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\n'"
    " }}{% endif %}"
)


class Turns(NamedTuple):
    """A conversation as tokens.

    Attributes:
      ids: int32 [T].
      answers: int32 [T], 1 for the tokens of answers, else 0.
      prompt: int32, the ids before the last answer.
      end: the special token that ends a turn, or None.
      row: the number of the row of the table.
      cut: the number of tokens that were truncated.
    """

    ids: np.ndarray
    answers: np.ndarray
    prompt: np.ndarray
    end: int | None
    row: int
    cut: int


@dataclass(frozen=True, kw_only=True)
class ChatTask(WritingTask):
    """Base class of tasks whose rows are conversations of roles system, user and assistant.

    Attributes:
      template: Jinja source, as published models have it; by default that of `train.init_from`, or
        a plain one.
      answer_length: the most tokens of an answer that the model writes.
    """

    scored_by: ScoredBy = "none"
    template: str = ""
    answer_length: Size = 64

    skeletons = ("decoder",)
    adopts = ("template",)

    def published_fields(self) -> Json:
        return {"chat_template": self.template or PLAIN}

    def turns(
        self, conversations: Sequence[Messages], limit: int, reader: TableRecords
    ) -> list[Turns]:
        """Tokenizes conversations.

        A conversation that does not end with an answer gets an empty one without weights.

        A conversation that is too long loses its end, so its last answer may have no tokens.
        """
        known = [messages[-1]["role"] == ANSWERS for messages in conversations]
        open_turn = {"role": ANSWERS, "content": ""}
        complete = []
        for messages, ends in zip(conversations, known, strict=True):
            complete.append(messages if ends else [*messages, open_turn])
        encoded = reader.conversations(self.template or PLAIN, complete, known)
        turns = []
        for row, (ids, answers, last, end) in enumerate(encoded, start=reader.first):
            cut = max(0, len(ids) - limit)
            turns.append(Turns(ids[:limit], answers[:limit], ids[:last], end, row, cut))
        return turns

    def limits(self, records: TableRecords) -> Limits:
        """Returns the maximum length of an answer, and the stop tokens.

        These are end-of-text, and the token that the template ends turns with.
        """
        ends = {records.tokenizer.eos_id, records.features[0][0].end} - {None}
        return {"max_new_tokens": self.answer_length, "eos_token_id": tuple(sorted(ends))}

    def prompt(self, records: TableRecords, example: int) -> np.ndarray:
        return records.features[example][0].prompt

    def costs(self, piece: Turns) -> tuple[int, ...]:
        return (len(piece.ids),)


def messages_of(value: Any, number: int, role: str) -> Messages:
    """Parses the messages of a row: a list, its JSON, or the text of a single user's message.

    Raises:
      ConfigError: it is not one of these.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith("[{"):
            return [{"role": "user", "content": value}]
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"row {number + 1}: {role} begins like JSON, but is not: {value[:80]!r}."
            ) from None
    if not (isinstance(value, (list, tuple)) and len(value) and all(map(_is_message, value))):
        raise ConfigError(
            f"row {number + 1}: {role}={str(value)[:80]!r} must be a list of"
            ' {"role": "user" or "assistant", "content": text}.'
        )
    return [{"role": m["role"], "content": m["content"]} for m in value]


def _is_message(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def asked_and_answered(messages: Messages) -> tuple[str, str | None]:
    """Returns the last text that is not an answer, and the final answer, if there is one."""
    question = next((m["content"] for m in reversed(messages) if m["role"] != ANSWERS), "")
    answer = messages[-1]["content"] if messages[-1]["role"] == ANSWERS else None
    return question, answer


def check_known(row: Row, roles: Sequence[str], number: int) -> None:
    """Rejects a row that has none of the columns that may begin a conversation."""
    if all(row[role] is None for role in roles):
        raise ConfigError(
            f"row {number + 1}: has no {' or '.join(roles)}; name the column with"
            " --config.data.columns."
        )
