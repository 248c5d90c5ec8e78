"""A sample of text from a trained decoder."""

import flax.linen as nn
import numpy as np

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.task import ids_without_text
from flaxformer_lite.runs.experiment import RunData
from flaxformer_lite.types import Params

MAX_PROMPT_TOKENS = (
    32  # most tokens of held-out text that the sample continues; at most half of an example
)
CANDIDATE_EXAMPLES = 64  # examples among which is the one that the sample continues
SAMPLE_TEMPERATURE = 0.8
TOP_P = 0.95


def can_write(cfg: ModelConfig) -> bool:
    """Returns whether a model can continue a prompt: a decoder with logits over tokens."""
    return cfg.skeleton == "decoder" and cfg.head == "lm"


def sample_text(
    model: nn.Module, params: Params, data: RunData, *, tokens: int, seed: int
) -> list[tuple[str, str]]:
    """Continues the beginning of a held-out example.

    Args:
      tokens: number of tokens to write; fewer if the model's position table ends earlier.

    Returns:
      The texts of the prompt and of the continuation, each with a title.
    """
    cfg = model.cfg
    tokenizer = data.tokenizer
    prompt = choose_prompt(data)
    room = cfg.max_length - len(prompt) if cfg.has_position_table else tokens
    written = generate(
        model,
        params,
        prompt[None],
        max_new_tokens=min(tokens, room),
        eos_token_id=tokenizer.eos_id,
        seed=seed,
        temperature=SAMPLE_TEMPERATURE,
        top_p=TOP_P,
        suppress_tokens=ids_without_text(cfg, tokenizer),
    )
    texts = tokenizer.decode(prompt.tolist()), tokenizer.decode(written[0, len(prompt) :].tolist())
    return list(zip(("a held-out text begins", "the model goes on"), texts, strict=True))


def choose_prompt(data: RunData) -> np.ndarray:
    """Returns the beginning of the held-out example that begins with the most usual tokens, int32.

    The first one may be a table of constants, after which a model writes nothing worth reading.
    """
    prompts = []
    for number in range(min(CANDIDATE_EXAMPLES, data.num_examples)):
        ids = np.asarray(data.example(number, 0, 0)["inputs"]["input_ids"])
        prompts.append(ids[: min(MAX_PROMPT_TOKENS, -(-len(ids) // 2))])
    log_counts = np.log(np.maximum(1, np.bincount(np.concatenate(prompts))))
    return max(prompts, key=lambda ids: log_counts[ids].mean())
