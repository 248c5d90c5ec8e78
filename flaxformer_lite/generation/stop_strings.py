"""Rows that end with a text rather than a token: found on the host, between two calls of the compiled loop."""

import numpy as np

from flaxformer_lite.generation.sample import State
from flaxformer_lite.generation.task import Task

EVERY = 8  # new tokens between two looks at the text


def cut(task: Task, state: State, since: int) -> State:
    """Ends each row with the first token that completes a stop string, and takes back what was written after it.

    A row that is looked at late therefore ends where it would have ended, had it been looked at after every token.

    Args:
      task: with stop_strings and a tokenizer.
      state: of the loop.
      since: new tokens that have been looked at.
    """
    tokens_BS, done_B, lengths_B = (np.array(x) for x in (state.tokens_BS, state.done_B, state.lengths_B))
    for row, length in enumerate(lengths_B):
        written = tokens_BS[row, task.columns : task.columns + length].tolist()
        for n in range(since + 1, length + 1):
            text = task.tokenizer.decode(written[:n])
            if any(stop in text for stop in task.settings.stop_strings):
                tokens_BS[row, task.columns + n :] = task.settings.pad_token_id
                done_B[row], lengths_B[row] = True, n
                break
    return state.replace(tokens_BS=tokens_BS, done_B=done_B, lengths_B=lengths_B)
