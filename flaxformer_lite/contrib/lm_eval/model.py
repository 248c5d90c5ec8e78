"""Registers `flaxformer_lite` as a model of EleutherAI's lm-evaluation-harness.

    import lm_eval
    import flaxformer_lite.contrib.lm_eval.model

    lm_eval.simple_evaluate("flaxformer_lite", "pretrained=runs/gpt2", tasks=["lambada_openai"])

The harness finds only models that are registered in its process; `flaxformer_lite lm-eval` imports
this file before it starts the harness's own command.
"""

from typing import Any

import lm_eval.models  # noqa: F401  # its own, which it lists only while the registry is empty
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.lm_eval.harness import HarnessModel
from flaxformer_lite.files.read import Json
from flaxformer_lite.model_details import load_tokenizer, published_settings
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained import chat

BATCH_SIZE = 8  # if the harness asks for "auto"


@register_model("flaxformer_lite")
class FlaxformerLite(HarnessModel, LM):
    """A directory of published weights or a workdir, as a model of the harness.

    Args:
      pretrained: as the path of `load_pretrained`.
      batch_size: rows computed together; the harness's "auto" is 8.
      max_length, dtype, family, adapter, base, quantize, cache, allow_plugins: as in `HarnessModel`
        and `load_pretrained`.
      device, max_batch_size: flags of the harness, which passes a default that is not read;
        JAX_PLATFORMS chooses the device.

    Raises:
      ConfigError, WeightsError, CheckpointError: the directory cannot be used.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: int | str | None = None,
        max_length: int | str = 0,
        dtype: str = "float32",
        family: str | None = None,
        adapter: str | None = None,
        base: str | None = None,
        quantize: str | None = None,
        cache: str | None = None,
        chat_variables: Json | None = None,
        allow_plugins: bool = False,
        device: str | None = None,
        max_batch_size: int | None = None,
    ):
        folder = on_disk(pretrained)
        fields = {"quantize": quantize, "cache": cache}
        low_precision: dict[str, Any] = {name: value for name, value in fields.items() if value}
        model, params = load_pretrained(
            folder,
            dtype=dtype,
            family=family,
            adapter=adapter,
            base=base,
            allow_plugins=allow_plugins,
            **low_precision,
        )
        if not quantize:
            model, params = merge_adapter(model, params)
        tokenizer = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
        super().__init__(
            model,
            params,
            tokenizer,
            batch_size=_batch_size(batch_size),
            max_length=int(max_length),
            generation=published_settings(folder),
        )
        self._name = str(pretrained)
        if chat_variables is not None and not isinstance(chat_variables, dict):
            raise ConfigError(
                f"chat_variables={chat_variables!r}: must be a JSON object; write --model_args"
                " as one, too."
            )
        self._chat_variables = chat_variables

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer in the harness's caches of requests."""
        return self._name.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[Json], add_generation_prompt: bool = True
    ) -> str:
        """Renders a conversation as the prompt of the assistant's next turn.

        Without a generation prompt, it goes on with the last message.
        """
        return chat.render(
            self.tokenizer,
            chat_history,
            self._chat_variables,
            continue_final_message=not add_generation_prompt,
        )

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns the source of the template, for the harness's records."""
        return self.tokenizer.chat_template if chat_template else None


def _batch_size(given: int | str | None) -> int:
    """Returns the rows of a batch; the harness passes a number, its text, or "auto"."""
    if given is None or str(given).startswith("auto"):
        return BATCH_SIZE
    try:
        size = int(given)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError(f"batch_size={given}: must be a positive number, or auto.")
    return size
