"""Prompts from conversations, by the chat template beside a model's weights."""

import json
import secrets

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.text import chat_template
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

Messages = list[Json]


def encode(tokenizer: PublishedTokenizer, messages: Messages) -> list[int]:
    """Encodes the prompt for the assistant's next turn; only the template can write special tokens.

    The spelling of one within a message, such as `<|im_end|>`, is text, so that a message cannot
    end its own turn.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: {"role": "system" | "user" | "assistant", "content": text}, in order.

    Raises:
      ConfigError: as in `render`.
    """
    guard = str(secrets.randbits(64))  # digits pass through every filter of a template
    broken = chat_template.guarded(messages, tokenizer.special_pattern, guard)
    return tokenizer.encode_guarded(render(tokenizer, broken), guard)


def render(tokenizer: PublishedTokenizer, messages: Messages) -> str:
    """Renders the prompt for the assistant's next turn.

    Rendering runs in a separate process, with a time limit.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: as in `encode`.

    Raises:
      ConfigError: there is no template, or as in text/chat_template.py.
    """
    if not tokenizer.chat_template:
        raise ConfigError("chat: this model has no chat template; pass the prompt as plain text.")
    tokens = {f"{role}_token": token for role, token in tokenizer.tokens.items()}
    variables = {"messages": messages, "add_generation_prompt": True, **tokens}
    return chat_template.render(tokenizer.chat_template, [variables])[0]


def standalone_template(tokenizer: PublishedTokenizer) -> str:
    """Returns a chat template with its special tokens filled in; "" if there is none."""
    if not tokenizer.chat_template:
        return ""
    statements = ""
    for role, token in tokenizer.tokens.items():
        statements += f"{{% set {role}_token = {json.dumps(token)} %}}"
    return statements + tokenizer.chat_template
