"""Prompts from conversations, by the chat template beside a model's weights."""

import importlib.util
import json
import secrets
import subprocess
import sys
from typing import Any

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained import render_template
from flaxformer_lite.pretrained.published_tokenizer import PublishedTokenizer

Messages = list[dict[str, Any]]
PATIENCE = 60  # seconds, on a machine that gives the process no time
LIMITS = f"{render_template.SECONDS} s of processor time, {render_template.MEMORY >> 20} MiB"


def encode(tokenizer: PublishedTokenizer, messages: Messages) -> list[int]:
    """Encodes the prompt for the assistant's next turn; only the template can write special tokens.

    The spelling of one within a message, such as `<|im_end|>`, is text, so that nobody's words can end their turn.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: {"role": "system" | "user" | "assistant", "content": text}, in order.

    Raises:
      ConfigError: as in `render`.
    """
    guard = str(secrets.randbits(64))  # digits pass through every filter of a template
    return tokenizer.encode_guarded(render(tokenizer, _guarded(tokenizer, messages, guard)), guard)


def render(tokenizer: PublishedTokenizer, messages: Messages) -> str:
    """Renders the prompt for the assistant's next turn, in a process that ends if the template does not.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: as in `encode`.

    Raises:
      ConfigError: there is no template or no jinja2; the template fails, refuses the messages or exceeds the limits of
        pretrained/render_template.py.
    """
    if not tokenizer.chat_template:
        raise ConfigError("chat: this model has no chat template; pass the prompt as plain text.")
    if not importlib.util.find_spec("jinja2"):
        raise ConfigError("chat: the model's chat template needs jinja2; pip install 'jinja2>=3.1'.")
    tokens = {f"{role}_token": token for role, token in tokenizer.tokens.items()}
    variables = {"messages": messages, "add_generation_prompt": True, **tokens}
    asked = json.dumps({"template": tokenizer.chat_template, "variables": variables}).encode()
    fails = "chat: the model's template fails on this conversation"
    try:
        command = [sys.executable, "-P", render_template.__file__]
        done = subprocess.run(command, input=asked, capture_output=True, timeout=PATIENCE, check=True)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{fails} (it does not end within {PATIENCE} s).") from None
    except subprocess.CalledProcessError as error:
        told = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = f"it does not end within {LIMITS}" if error.returncode < 0 else f"its process ended: {told}"
        raise ConfigError(f"{fails} ({why}).") from None
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ConfigError(f"{fails} ({answer['error']}).")
    if not answer["text"]:
        raise ConfigError(f"{fails} (the prompt is empty).")
    try:
        answer["text"].encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{fails} (the prompt is not Unicode text: {error}).") from None
    return answer["text"]


def _guarded(tokenizer: PublishedTokenizer, value: Any, guard: str) -> Any:
    """Breaks the spelling of each special token within messages, by a guard behind its first character."""
    if isinstance(value, str):
        return tokenizer.special_pattern.sub(lambda found: f"{found[0][0]}{guard}{found[0][1:]}", value)
    if isinstance(value, dict):
        return {key: _guarded(tokenizer, item, guard) for key, item in value.items()}
    return [_guarded(tokenizer, item, guard) for item in value] if isinstance(value, list) else value
