"""Measures how far the results of a file with smaller weights are from those in float32."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from scipy.special import log_softmax

from flaxformer_lite.contrib.export.cases import Case, Inputs, Run, first_call, pad_texts
from flaxformer_lite.contrib.export.programs import ExportProgram
from flaxformer_lite.types import Params

BATCH = 8  # texts at a time
Pairs = Iterator[tuple[Case, Case]]  # a call of the model in float32, and the same of the files


def measure_cost(
    programs: Sequence[ExportProgram],
    params: Params,
    run: Run,
    rows: Sequence[Sequence[int]],
    *,
    head: str,
    start: int = 0,
) -> str:
    """Compares what files compute with the model in float32; returns the difference in words.

    * A decoder: of the texts' negative log-likelihood, in nats per token.
    * Other distributions over a vocabulary: the KL divergence from those of float32, in nats per
      token; of an encoder-decoder, for the first token of the target.
    * A classifier of texts: for how many texts the largest logit is of the same class; of one
      number for each text, the largest difference.
    * All else, such as the vector of a text: the cosine with float32's, its mean and least value.

    Args:
      programs: all programs of the model.
      params: the model's own parameters.
      run: (name of a program, inputs) -> outputs, by the files.
      rows: ids of texts, two each at least for a decoder.
      head: the model's head.
      start: the first token of an encoder-decoder's target.
    """
    compiled = {program.name: jax.jit(program.function) for program in programs}

    def run_exact(name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        return {key: np.asarray(x) for key, x in compiled[name](params, inputs).items()}

    ordered = sorted(rows, key=len)  # so that batches have little padding
    exact = _calls(programs, run_exact, ordered, start)
    stored = _calls(programs, run, ordered, start)
    pairs = zip(exact, stored, strict=True)
    is_decoder = len(programs) == 1 and programs[0].name == "decode"
    if is_decoder:
        return _likelihoods(pairs)
    if head == "sequence_classification":
        return _classes(pairs)
    if head in ("masked_lm", "pretraining", "lm") and programs[-1].name != "embed":
        return _divergence(pairs)
    return _cosines(pairs)


def _calls(
    programs: Sequence[ExportProgram], run: Run, rows: Sequence[Sequence[int]], start: int
) -> Iterator[Case]:
    """Yields the first call of the last program for each batch of texts."""
    first = programs[0]
    last = programs[-1]
    for at in range(0, len(rows), BATCH):
        chosen = rows[at : at + BATCH]
        case = None
        if first.name != "decode":
            inputs = pad_texts(first, chosen)
            case = Case(first.name, inputs, run(first.name, inputs))
        if last.name == "decode":
            inputs = first_call(last, chosen, case, start)
            case = Case(last.name, inputs, run(last.name, inputs))
        assert case is not None, "a program encodes or decodes"
        yield case


def _likelihoods(pairs: Pairs) -> str:
    total = np.zeros(2)
    count = 0
    for calls in pairs:
        mask_BT = calls[0].inputs["attention_mask"] != 0
        is_scored_BT = mask_BT[:, 1:] & mask_BT[:, :-1]
        next_BT = calls[0].inputs["input_ids"][:, 1:]
        count += is_scored_BT.sum()
        for number, call in enumerate(calls):
            logp_BTV = log_softmax(call.outputs["logits"][:, :-1].astype(np.float64), axis=-1)
            logp_BT = np.take_along_axis(logp_BTV, next_BT[:, :, None], axis=-1)[:, :, 0]
            total[number] -= logp_BT[is_scored_BT].sum()
    exact, stored = total / max(1, count)
    return f"{stored - exact:+.4f} nats per token ({exact:.4f} in float32, {count:,} tokens)"


def _classes(pairs: Pairs) -> str:
    same = 0
    count = 0
    largest = 0.0
    is_number = False
    for exact, stored in pairs:
        logits_BC = exact.outputs["logits"]
        stored_BC = stored.outputs["logits"]
        is_number = logits_BC.shape[-1] == 1
        largest = max(largest, float(np.abs(stored_BC - logits_BC).max()))
        same += (logits_BC.argmax(axis=-1) == stored_BC.argmax(axis=-1)).sum()
        count += len(logits_BC)
    if is_number:
        return f"at most {largest:.4f} from the number of float32 ({count:,} texts)"
    return f"the class of float32 for {same:,} of {count:,} texts"


def _divergence(pairs: Pairs) -> str:
    total = 0.0
    count = 0
    for exact, stored in pairs:
        name = "logits"
        if name not in exact.outputs:
            name = "prediction_logits"
        logp_BTV = log_softmax(exact.outputs[name].astype(np.float64), axis=-1)
        logq_BTV = log_softmax(stored.outputs[name].astype(np.float64), axis=-1)
        apart_BT = (np.exp(logp_BTV) * (logp_BTV - logq_BTV)).sum(axis=-1)
        is_real_BT = np.ones(apart_BT.shape, bool)
        if exact.program != "decode":
            is_real_BT = exact.inputs["attention_mask"] != 0
        total += apart_BT[is_real_BT].sum()
        count += is_real_BT.sum()
    return f"{total / max(1, count):.4f} nats per token from float32 (KL, {count:,} tokens)"


def _cosines(pairs: Pairs) -> str:
    cosines: list[float] = []
    for exact, stored in pairs:
        name = next(iter(exact.outputs))
        for x, y, mask_T in zip(
            exact.outputs[name],
            stored.outputs[name],
            exact.inputs["attention_mask"],
            strict=True,
        ):
            if x.shape[:1] == mask_T.shape:  # a vector per token
                x = x[mask_T != 0]
                y = y[mask_T != 0]
            a = x.ravel().astype(np.float64)
            b = y.ravel().astype(np.float64)
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            cosine = 1.0
            if lengths:
                cosine = float(a @ b / lengths)
            cosines.append(cosine)
    return (
        f"cosine with float32 {np.mean(cosines):.4f} on average, at least {min(cosines):.4f}"
        f" ({len(cosines):,} texts)"
    )
