"""Draws many continuations of each prompt with weights that change, by one compiled program."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import numpy as np

from flaxformer_lite.contrib.rl.rollout import Drawn
from flaxformer_lite.inference.generate import run_task
from flaxformer_lite.inference.settings import make_settings
from flaxformer_lite.inference.task import prepare_task
from flaxformer_lite.inference.writer import fill_rectangle
from flaxformer_lite.types import Array, Params


def draw_continuations(
    model: nn.Module,
    params: Params,
    prompts: Sequence[np.ndarray],
    *,
    samples: int,
    width: int,
    max_new_tokens: int,
    temperature: float,
    eos_token_id: tuple[int, ...],
    pad_token_id: int,
    seed: int,
    place: Callable[[Array], Array] = np.asarray,
    gather: Callable[[Array], np.ndarray] = np.asarray,
) -> list[Drawn]:
    """Draws continuations, with the model's log-probabilities at temperature 1.

    All tokens of the model's table may be drawn, also those that only pad it.

    Args:
      model: a decoder without a mesh.
      params: its weights, on any mesh.
      prompts: the ids of each prompt, at most `width`, to which all are padded.
      samples: continuations of each prompt, which are neighbors.
      seed: of all of them; a row's draws depend on its number, not on its neighbors.
      place: puts an array of one row per prompt on the devices.
      gather: reads an array of the devices, of all processes.
    """
    ids, mask = fill_rectangle(list(prompts), width, pad_token_id)
    settings = make_settings(
        num_return_sequences=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        seed=seed,
    )
    task = prepare_task(model, ids, mask, None, None, settings)
    prompt = task.prompt._replace(
        tokens_BT=place(task.prompt.tokens_BT), start_B=place(task.prompt.start_B)
    )
    made = run_task(model, params, task._replace(prompt=prompt), read=gather)
    assert made.logprobs is not None, "asked for"
    new = made.sequences[:, width:]
    rows = zip(new, made.logprobs, made.lengths.tolist(), strict=True)
    return [Drawn(row[:length], log_probs[:length]) for row, log_probs, length in rows]
