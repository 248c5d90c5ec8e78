"""The base of tasks on conversations: chat templates, and generation of the next answer."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.config.rules import Size
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.objectives.rows import Encoder, Rows, StoredColumn
from flaxformer_lite.objectives.tables.task import Column, Row
from flaxformer_lite.objectives.tables.writing import Limits, ScoredBy, WritingTask
from flaxformer_lite.text.roles import ANSWERS, Messages

# For models without a template: each turn under its role; answers end with the end-of-text token.
PLAIN = (
    "{% for m in messages %}{{ m.role ~ ':\n' }}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content or [] %}{% if part.type != 'text' %}"
    "{{ raise_exception('without a chat template, a turn has texts only') }}{% endif %}"
    "{{ part.text }}{% endfor %}{% endif %}{% if m.role == 'assistant' %}{{"
    " eos_token }}{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:\n'"
    " }}{% endif %}"
)

# Who speaks in a message of the keys `from` and `value`, as transformers' roles.
SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": ANSWERS,
    "assistant": ANSWERS,
    "system": "system",
}


class Turns(NamedTuple):
    """A conversation as tokens.

    Attributes:
      ids: int32 [T].
      answers: int32 [T], 1 for the tokens of answers, else 0.
      prompt: int32, the ids before the last answer.
      end: the special token that ends a turn; -1 for none.
      cut: the number of tokens that were truncated.
    """

    ids: np.ndarray
    answers: np.ndarray
    prompt: np.ndarray
    end: int
    cut: int


@dataclass(frozen=True, kw_only=True)
class ChatTask(WritingTask):
    """Base class of tasks whose rows are conversations of roles system, user and assistant.

    Attributes:
      template: Jinja source, as published models have it; by default the one of
        `train.init_from`, or a plain one.
      answer_length: the most tokens of an answer that the model writes.
    """

    scored_by: ScoredBy = "none"
    template: str = ""
    answer_length: Size = 64

    skeletons = ("decoder",)
    stored: ClassVar = {
        "ids": StoredColumn("token"),
        "answers": StoredColumn("int8", like="ids"),
        "prompt": StoredColumn("token"),
        "end": StoredColumn("int32", ()),
    }
    adopts = ("template",)
    learn = "all"  # not annotated, so not a field here

    def published_fields(self) -> Json:
        return {"chat_template": self.template or PLAIN}

    def turns(self, conversations: Sequence[Json], limit: int, encoder: Encoder) -> list[Turns]:
        """Tokenizes conversations.

        One that does not end with an answer ends with the prompt for it.

        A conversation that is too long loses its end, so its last answer may have no tokens.
        """
        encoded = encoder.conversations(self.template or PLAIN, conversations, self.learn)
        turns = []
        for ids, answers, prompt, end in encoded:
            cut = max(0, len(ids) - limit)
            end_id = -1 if end is None else end
            turns.append(Turns(ids[:limit], answers[:limit], prompt, end_id, cut))
        return turns

    def limits(self, records: Rows) -> Limits:
        """Returns the maximum length of an answer, and the stop tokens.

        These are end-of-text, and the token that the template ends turns with.
        """
        ends = {records.tokenizer.eos_id, int(records.pieces(0)[0]["end"])} - {-1}
        return {"max_new_tokens": self.answer_length, "eos_token_id": tuple(sorted(ends))}

    def prompt(self, records: Rows, example: int) -> np.ndarray:
        return records.pieces(example)[0]["prompt"]


def messages_of(value: Any, number: int, role: str) -> Messages:
    """Parses the messages of a row: a list, its JSON, or the text of a single user's message.

    Raises:
      ConfigError: it is not one of these.
    """
    if isinstance(value, str):
        is_list = re.match(r"\s*\[\s*\{", value)
        # others than messages may be a text of any JSON
        if not is_list or (role != "messages" and '"role"' not in value):
            return [{"role": "user", "content": value}]
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"row {number + 1}: {role} begins like JSON, but is not: {value[:80]!r}."
            ) from None
    if isinstance(value, (list, tuple)):
        value = [_renamed(message, number, role) for message in value]
        value = [_with_parsed_calls(message, number, role) for message in value]
    if not (isinstance(value, list) and len(value) and all(map(_is_message, value))):
        raise ConfigError(
            f"row {number + 1}: {role}={quote_value(value)} must be a text, or a list of"
            ' {"role": "user" or "assistant", "content": text}.'
        )
    for message in value:
        _check_calls(message, number, role)
    return [dict(message) for message in value]


def variables_of(row: Row, messages: Messages, number: int) -> Json:
    """Returns what the template is rendered with: the messages, and what else the row has."""
    variables: Json = {"messages": messages}
    for role, kind in (("tools", list), ("documents", list), ("chat_template_kwargs", dict)):
        value = row.get(role)
        if value in (None, ""):  # as csv has it
            continue
        if isinstance(value, str):
            value = _parsed(value, f"row {number + 1}: {role}")
        if not isinstance(value, kind):
            raise ConfigError(
                f"row {number + 1}: {role}={str(value)[:80]!r} must be a JSON {kind.__name__}."
            )
        variables[role] = value
    return variables.pop("chat_template_kwargs", {}) | variables


def _renamed(message: object, number: int, role: str) -> object:
    """Renames the keys and roles of a message as ShareGPT and Vicuna write it."""
    if not isinstance(message, dict) or "role" in message or "from" not in message:
        return message
    others = dict(message)
    speaker = others.pop("from")
    if speaker not in SPEAKERS:
        raise ConfigError(
            f"row {number + 1}: from={quote_value(speaker)} in {role} must be one of"
            f" {', '.join(SPEAKERS)}; write such a conversation with role and content."
        )
    return {"role": SPEAKERS[speaker], "content": others.pop("value", None), **others}


def _with_parsed_calls(message: object, number: int, role: str) -> object:
    """Parses tool calls that are one text of JSON, as columns of one type have them."""
    if not isinstance(message, dict) or not isinstance(message.get("tool_calls"), str):
        return message
    calls = _parsed(message["tool_calls"], f"row {number + 1}: the tool calls in {role}")
    return message | {"tool_calls": calls}


def _check_calls(message: Json, number: int, role: str) -> None:
    """Rejects a tool call whose arguments are a text that is no JSON."""
    for call in message.get("tool_calls") or ():
        if isinstance(call, dict):
            function = call.get("function") or call
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                where = f"row {number + 1}: the arguments of a tool call in {role}"
                _parsed(function["arguments"], where)


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: must be JSON, not {text[:80]!r}; correct it.") from None


def _is_message(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    if not isinstance(value.get("role"), str):
        return False
    if not isinstance(value.get("tool_calls"), (list, tuple, type(None))):
        return False
    if value.get("content") is None:
        return any(item is not None for key, item in value.items() if key != "role")
    return isinstance(value["content"], (str, list, tuple))


def asked_and_answered(messages: Messages) -> tuple[str, str | None]:
    """Returns the last text that is not an answer, and the final answer, if there is one."""
    question = ""
    for message in messages:
        if message["role"] != ANSWERS:
            question = _text_of(message)
    if messages[-1]["role"] != ANSWERS:
        return question, None
    return question, _text_of(messages[-1])


def _text_of(message: Json) -> str:
    """Returns the content of a message; its parts or its tool calls as JSON."""
    content = message.get("content") or message.get("tool_calls") or ""
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, default=str)


# What a row has beside its messages, under the names of transformers and trl.
VARIABLES = (
    Column("tools", optional=True, later=True),
    Column("documents", optional=True, later=True),
    Column("chat_template_kwargs", optional=True, later=True),
)


def check_known(row: Row, roles: Sequence[str], number: int) -> None:
    """Rejects a row that has none of the columns that may begin a conversation."""
    if all(row[role] is None for role in roles):
        raise ConfigError(
            f"row {number + 1}: has no {' or '.join(roles)}; name the column with"
            " --config.data.columns."
        )
