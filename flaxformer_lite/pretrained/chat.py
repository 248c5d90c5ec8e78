"""Rendering of conversations as prompts, by the chat template beside a model's weights."""

import datetime
import json

from flaxformer_lite.config import ConfigError
from flaxformer_lite.pretrained.published_tokenizer import PublishedTokenizer


def render(tokenizer: PublishedTokenizer, messages: list[dict[str, str]]) -> str:
    """Renders the prompt for the assistant's next turn; encode it with special_tokens=False, as it contains them.

    Args:
      tokenizer: a tokenizer with a chat template.
      messages: {"role": "system" | "user" | "assistant", "content": text}, in order.

    Raises:
      ConfigError: there is no template or no jinja2, or the template fails or refuses the messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError("chat: this model has no chat template; pass the prompt as plain text.")
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError("chat: the model's chat template needs jinja2; pip install 'jinja2>=3.1'.") from None

    def refuse(message: str):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    tokens = {f"{role}_token": token for role, token in tokenizer.tokens.items()}
    try:
        template = environment.from_string(tokenizer.chat_template)
        return template.render(messages=messages, add_generation_prompt=True, **tokens)
    except (TemplateError, TypeError) as error:
        raise ConfigError(f"chat: the model's template fails on this conversation ({error}).") from None
