"""Conversations as tokens: rendered by a chat template, with the tokens of each answer marked."""

import bisect
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.text import chat_template
from flaxformer_lite.text.chat_template import FAILS, Rendered
from flaxformer_lite.text.roles import ANSWERS, Messages
from flaxformer_lite.text.tokenizer import Tokenizer

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
PROBE = "fine"  # the answer by which the token that ends a turn is found
PROBING: Messages = [
    {"role": "user", "content": "why"},
    {"role": ANSWERS, "content": PROBE},
]
OTHER = "\ue000"  # an answer that shares no letter with any other, as no text has this one


class Conversation(NamedTuple):
    """The tokens of a conversation."""

    ids: np.ndarray  # [T] int32
    answers: np.ndarray  # [T] int32, 1 for tokens of answers that are learned
    prompt: np.ndarray  # int32, what is read before the last answer is written
    end: int | None  # the special token that ends a turn; None if the template has none


def encode(
    tokenizer: Tokenizer, template: str, chats: Sequence[Json], *, learn: str = "all"
) -> list[Conversation]:
    """Renders and tokenizes conversations; those that do not end with an answer, as a prompt of it.

    The text is tokenized as a whole. Where the template has `{% generation %}`, what is within it
    is learned. Otherwise an answer is the difference of two renderings: it begins where the
    conversation goes on after the prompt for it, and ends with the special token that ends its
    turn. If the template writes earlier turns otherwise once there are later ones, the second
    rendering has another answer in its place.

    Args:
      tokenizer: gives the special tokens.
      template: Jinja source.
      chats: the variables of each: `messages`, and what else it has, such as `tools`.
      learn: the answers that are learned: `all`, the `last` one, or as the template has them
        `marked`.

    Raises:
      ConfigError: as in `text/chat_template.py`, also that the template refuses a row; or it marks
        nothing, and `learn` says so.
    """
    has_marks = GENERATION.search(template) is not None
    if learn == "marked" and not has_marks:
        raise ConfigError(
            "objective.learn='marked': the chat template has no {% generation %}; choose all or"
            " last."
        )
    guard = str(secrets.randbits(64) | 1 << 63)  # digits pass through every filter of a template
    specials = _spelled_roles(tokenizer)
    batch = []
    sizes = []
    for chat in chats:
        literal = chat_template.break_special_tokens(chat, tokenizer.special_pattern, guard)
        needed = _renderings(specials | literal, every=not has_marks and learn == "all")
        batch += needed
        sizes.append(len(needed))
    probe = _with(batch[0] if batch else specials, PROBING)  # with its tools
    *rendered, probed = chat_template.render_each(template, [*batch, probe], marks=has_marks)
    end = _end_of_turn(tokenizer, probed)
    spans = _spans(template, batch, rendered, sizes, tokenizer.special_pattern.pattern, end)
    made = []
    at = 0
    for number, size in enumerate(sizes):
        part = rendered[at : at + size]
        if part[0].error:
            raise ConfigError(f"row {number + 1}: {FAILS} ({part[0].error}).")
        if part[0].marked is None:
            raise ConfigError(
                f"row {number + 1}: chat: the template changes what is within {{% generation %}},"
                " so that answers are not found; write it without filters, or take the tag out."
            )
        ends = chats[number]["messages"][-1]["role"] == ANSWERS
        found = spans[number]
        made.append(_conversation(tokenizer, part, found, guard, end, ends, has_marks, learn))
        at += size
    return made


def find_end_of_turn(tokenizer: Tokenizer, template: str) -> int | None:
    """Returns the special token with which a template ends turns; None if there is none.

    Raises:
      ConfigError: as in `text/chat_template.py`.
    """
    probe = _with(_spelled_roles(tokenizer), PROBING)
    tool = {"type": "function", "function": {"name": "a", "description": "a", "parameters": {}}}
    # a template may be for conversations with tools alone
    for probed in chat_template.render_each(template, [probe, probe | {"tools": [tool]}]):
        if not probed.error:
            return tokenizer.spelled.get(_end_of_turn(tokenizer, probed))
    return None


def _spelled_roles(tokenizer: Tokenizer) -> Json:
    """Returns the variables of a template that spell special tokens."""
    spelling = {i: token for token, i in tokenizer.spelled.items()}
    roles = ("bos", "eos", "pad")
    return {f"{role}_token": spelling.get(tokenizer.ids.get(role, -1), "") for role in roles}


def _with(variables: Json, messages: Messages, *, asks: bool = False) -> Json:
    return variables | {"messages": messages, "add_generation_prompt": asks}


def _renderings(variables: Json, *, every: bool) -> list[Json]:
    """Returns the variables of the whole conversation, then two for each answer.

    They are of the prompt for it, and of the conversation to its end.
    """
    messages = variables["messages"]
    made = [_with(variables, messages, asks=messages[-1]["role"] != ANSWERS)]
    numbers = [i for i, message in enumerate(messages) if message["role"] == ANSWERS]
    if not every:
        numbers = numbers[-1:]
    for i in numbers:
        made.append(_with(variables, messages[:i], asks=True))
        made.append(_with(variables, messages[: i + 1]))
    return made


def _end_of_turn(tokenizer: Tokenizer, probed: Rendered) -> str:
    """Returns the first special token behind the answer of the probe; "" if there is none."""
    at = probed.text.rfind(PROBE)
    match = tokenizer.special_pattern.search(probed.text, at)
    if match is None or at < 0:
        return ""
    return match[0]


def _spans(
    template: str,
    batch: Sequence[Json],
    rendered: Sequence[Rendered],
    sizes: Sequence[int],
    special_pattern: str,
    end: str,
) -> list[list[tuple[int, int]]]:
    """Returns of each conversation where its answers begin and end; equal if unknown."""
    spans: list[list[tuple[int, int]]] = []
    unclear = []
    others = []
    at = 0
    for number, size in enumerate(sizes):
        spans.append([])
        for prompt in range(at + 1, at + size, 2):
            text = rendered[at].text
            before = rendered[prompt]
            span = _span_by_beginnings(text, before, rendered[prompt + 1], special_pattern, end)
            if span is None:
                # The template writes this turn otherwise once there are later ones.
                unclear.append((number, len(spans[number]), text, before))
                others.append(_with_other(batch[at], len(batch[prompt]["messages"])))
            spans[number].append(span or (0, 0))
        at += size
    for (number, answer, text, before), other in zip(
        unclear, chat_template.render_each(template, others), strict=True
    ):
        if not other.error:
            spans[number][answer] = _span_by_difference(text, before, other.text, special_pattern)
    return spans


def _with_other(variables: Json, answer: int) -> Json:
    """Returns the variables of a whole conversation with another answer in one place."""
    messages = list(variables["messages"])
    messages[answer] = {"role": ANSWERS, "content": OTHER}
    return variables | {"messages": messages}


def _span_by_beginnings(
    text: str, before: Rendered, until: Rendered, special_pattern: str, end: str
) -> tuple[int, int] | None:
    """Returns the first character of an answer, and the one behind its last.

    It is None where the whole conversation does not go on as its beginnings do.

    Args:
      text: the whole conversation.
      before: the prompt for the answer.
      until: the conversation to the end of the answer.
      special_pattern: matches special tokens.
      end: the one that ends a turn.
    """
    if before.error or until.error or not text.startswith(before.text):
        return None
    begin = len(before.text)
    tail = begin
    # From word to word, as a search for all that may close a text is quadratic in its spaces.
    for word in re.compile(rf"{special_pattern}|((?:(?!{special_pattern})\S)+)").finditer(
        until.text, begin
    ):
        if word[1]:
            tail = word.end()
    shared = _common_prefix_length(text, until.text)
    if shared < tail:
        return None
    last = text.rfind(end, begin, shared)
    if end and last >= 0:
        return begin, last + len(end)
    match = re.compile(rf"\s*(?:{special_pattern})").match(text, tail)
    if match:
        return begin, match.end()
    return begin, shared


def _span_by_difference(
    text: str, before: Rendered, other: str, special_pattern: str
) -> tuple[int, int]:
    """Returns where a conversation differs from one with another answer in this place."""
    if not before.error and text.startswith(before.text):
        begin = len(before.text)
    else:
        begin = _common_prefix_length(text, other)
    stop = max(len(text) - _common_prefix_length(text[::-1], other[::-1]), begin)
    # not the last turn's end alone, as earlier ones may end with another token
    match = re.compile(rf"\s*(?:{special_pattern})").match(text, stop)
    if match:
        stop = match.end()
    return begin, stop


def _common_prefix_length(a: str, b: str) -> int:
    """Returns the number of characters with which both texts begin."""
    # Bisected, as slices compare in C, where os.path.commonprefix goes from letter to letter.
    lengths = range(1, min(len(a), len(b)) + 1)
    return bisect.bisect_left(lengths, True, key=lambda length: a[:length] != b[:length])


def _conversation(
    tokenizer: Tokenizer,
    rendered: Sequence[Rendered],
    spans: Sequence[tuple[int, int]],
    guard: str,
    end: str,
    ends: bool,
    has_marks: bool,
    learn: str,
) -> Conversation:
    whole = rendered[0]
    tokens = tokenizer.encode_spelled(whole.text, guard)
    answers = np.zeros(len(tokens.ids), np.int32)

    def place(character: int) -> int:
        return len(whole.text[:character].replace(guard, ""))

    def covered(begin: int, stop: int) -> np.ndarray:
        real = tokens.end > tokens.start
        return real & (tokens.end > place(begin)) & (tokens.start < place(stop))

    last = spans[-1][0] if spans else 0
    learned = list(spans)
    if has_marks:
        marked = whole.marked or ()
        learned = [(begin, stop) for begin, stop in marked if learn != "last" or stop > last]
    elif learn == "last":
        learned = learned[-1:]
    if learn == "last" and not ends:
        learned = []
    for begin, stop in learned:
        if begin < stop:
            at = covered(begin, stop)
            if has_marks:  # as transformers, which takes the first token of the last character
                final = covered(stop - 1, stop)
                at &= np.cumsum(final) - final < 1
            answers |= at
    prompt = tokens.ids
    if ends and not whole.text.startswith(rendered[-2].text or OTHER):
        prompt = tokenizer.encode_spelled(rendered[-2].text, guard).ids
    elif ends:
        prompt = tokens.ids[: int(np.sum(tokens.end <= place(len(rendered[-2].text))))]
    return Conversation(tokens.ids, answers, prompt, tokenizer.spelled.get(end))
