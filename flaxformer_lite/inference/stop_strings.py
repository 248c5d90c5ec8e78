"""Stop strings, which end a row by text rather than by token.

They are checked on the host between calls of the compiled loop.
"""

import numpy as np

from flaxformer_lite.inference.sample import SampleState
from flaxformer_lite.inference.task import GenerationTask

TOKENS_PER_CHECK = 8  # new tokens between two checks of the text


def cut(task: GenerationTask, state: SampleState, since: int) -> SampleState:
    """Ends each row at the first token that completes a stop string; removes later tokens.

    The result is the same as if every row had been checked after every token.

    Args:
      since: number of new tokens already checked.
    """
    assert task.tokenizer is not None, "checked by `prepare`"
    tokens_BS = np.array(state.tokens_BS)
    done_B = np.array(state.done_B)
    lengths_B = np.array(state.lengths_B)
    logprobs_BS = None if state.logprobs_BS is None else np.array(state.logprobs_BS)
    for row, length in enumerate(lengths_B):
        written = tokens_BS[row, task.columns : task.columns + length].tolist()
        for n in range(since + 1, length + 1):
            # From the beginning each time: a stop string may begin before `since`, and a character
            # may be several tokens.
            text = task.tokenizer.decode(written[:n])
            if any(stop in text for stop in task.settings.stop_strings):
                tokens_BS[row, task.columns + n :] = task.settings.pad_token_id
                if logprobs_BS is not None:
                    logprobs_BS[row, task.columns + n :] = 0.0
                done_B[row] = True
                lengths_B[row] = n
                break
    return state.replace(
        tokens_BS=tokens_BS, logprobs_BS=logprobs_BS, done_B=done_B, lengths_B=lengths_B
    )
