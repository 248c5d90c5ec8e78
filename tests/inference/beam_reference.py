"""Beam search in plain Python, a prompt at a time, written from its description and not from the
code it checks."""

import numpy as np

FAR = -1e9


def beam_search(
    next_logprobs, prompt, *, beams, new, eos, length_penalty=1.0, early_stopping=False, returned=1
):
    """The best continuations and their scores.

    Args:
      next_logprobs: function from a list of ids to the log-probabilities [V] of the next.
      prompt: list of ids.
      beams: kept side by side.
      new: tokens at most.
      eos: set of stop tokens.
      length_penalty: exponent of the length.
      early_stopping: True, False or "never".
      returned: of the beams.
    """
    running = [(0.0, list(prompt))]
    finished = []
    is_open = True
    for length in range(1, new + 1):
        candidates = []
        for score, ids in running:
            logprobs = next_logprobs(ids)
            likeliest = np.argsort(-logprobs)[: 4 * beams]
            candidates += [(score + float(logprobs[token]), [*ids, token]) for token in likeliest]
        candidates = sorted(candidates, key=lambda c: -c[0])[: max(2, 1 + len(eos)) * beams]
        stops = [ids[-1] in eos or length == new for _, ids in candidates]
        may_enter = is_open and not (early_stopping is True and len(finished) == beams)
        for (score, ids), stop in list(zip(candidates, stops, strict=True))[:beams]:
            if stop and may_enter:
                finished.append((score / length**length_penalty, ids))
        finished = sorted(finished, key=lambda f: -f[0])[:beams]
        running = [c for c, stop in zip(candidates, stops, strict=True) if not stop][:beams]
        if not running:
            break
        best_length = new if early_stopping == "never" and length_penalty > 0 else length
        worst = finished[-1][0] if len(finished) == beams else FAR
        is_open = is_open and running[0][0] / best_length**length_penalty > worst
        if not is_open or (early_stopping is True and len(finished) == beams):
            break
    return [ids for _, ids in finished[:returned]], [score for score, _ in finished[:returned]]
