"""Prompts from conversations, by the chat template beside a model's weights."""

import json
import secrets
from collections.abc import Sequence

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.text import chat_template
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

Messages = list[Json]


def encode(
    tokenizer: PublishedTokenizer,
    messages: Messages,
    variables: Json | None = None,
    *,
    continue_final_message: bool = False,
) -> list[int]:
    """Encodes the prompt for the assistant's next turn; only the template can write special tokens.

    The spelling of one within a message, such as `<|im_end|>`, is text, so that a message cannot
    end its own turn.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: {"role": "system" | "user" | "assistant", "content": text}, in order.
      variables: what else the template gets, such as `enable_thinking`.
      continue_final_message: whether the last message is an answer that was begun, which the model
        goes on with.

    Raises:
      ConfigError: as in `render`.
    """
    guard = str(secrets.randbits(64))  # digits pass through every filter of a template
    broken = chat_template.break_special_tokens(messages, tokenizer.special_pattern, guard)
    text = render(tokenizer, broken, variables, continue_final_message=continue_final_message)
    return tokenizer.encode_guarded(text, guard)


def render(
    tokenizer: PublishedTokenizer,
    messages: Messages,
    variables: Json | None = None,
    *,
    continue_final_message: bool = False,
) -> str:
    """Renders the prompt for the assistant's next turn.

    Rendering runs in a separate process, with a time limit.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages, variables, continue_final_message: as in `encode`.

    Raises:
      ConfigError: there is no template, or as in text/chat_template.py; or the last message has no
        text to go on with, or the template does not write it.
    """
    if not tokenizer.chat_template:
        raise ConfigError("chat: this model has no chat template; pass the prompt as plain text.")
    tokens = {f"{role}_token": token for role, token in tokenizer.tokens.items()}
    given: Json = {**tokens, **(variables or {})}
    if not continue_final_message:
        given |= {"messages": messages, "add_generation_prompt": True}
        return chat_template.render(tokenizer.chat_template, [given])[0]
    # Digits, which pass through every filter; a space shows whether the template takes spaces away.
    mark = str(secrets.randbits(128) | 1 << 127)
    last, begun = _with_end(messages[-1] if messages else {}, f"{mark} ")
    given |= {"messages": [*messages[:-1], last], "add_generation_prompt": False}
    text = chat_template.render(tokenizer.chat_template, [given])[0]
    at = text.rfind(mark)
    if at < 0 or begun.strip() not in text:
        raise ConfigError(
            "continue_final_message: the chat template does not write the last message as it is;"
            " end with a message of the user, or take another template."
        )
    if text.startswith(f"{mark} ", at):
        return text[:at]
    return text[:at].rstrip()


def _with_end(message: Json, end: str) -> tuple[Json, str]:
    """Adds to the end of a message's text, or of the last text among its parts.

    Returns:
      The message, and the text as it was.
    """
    content = message.get("content")
    if isinstance(content, str):
        return message | {"content": content + end}, content
    parts = list(content) if isinstance(content, (list, tuple)) else []
    for number in reversed(range(len(parts))):
        part = parts[number]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            parts[number] = part | {"text": part["text"] + end}
            return message | {"content": parts}, part["text"]
    raise ConfigError(
        "continue_final_message: the last message has no text to go on with; give it a content."
    )


def read_variables(given: Sequence[str], flag: str) -> Json:
    """Reads variables of a chat template from KEY=VALUE; a value is JSON, or else a text.

    Raises:
      ConfigError: one has no `=`, or no key.
    """
    variables: Json = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"{flag}={each!r}: must be KEY=VALUE, such as enable_thinking=false.")
        try:
            variables[key] = json.loads(value)
        except (ValueError, RecursionError):
            variables[key] = value
    return variables


def standalone_template(tokenizer: PublishedTokenizer) -> str:
    """Returns a chat template with its special tokens filled in; "" if there is none."""
    if not tokenizer.chat_template:
        return ""
    statements = ""
    for role, token in tokenizer.tokens.items():
        statements += f"{{% set {role}_token = {json.dumps(token)} %}}"
    # A block takes the line end behind it; without one the template's first line would be indented
    # text, where it begins with a block.
    return f"{statements}\n{tokenizer.chat_template}" if statements else tokenizer.chat_template
