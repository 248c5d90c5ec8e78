"""The generation half of a fixture: prompts, the ways of continuing them, and the sampling
filters."""

import copy
from typing import Any

import numpy as np
import torch
from fixture_inputs import Arrays, text
from fixture_specs import Spec
from transformers import PreTrainedModel
from transformers.generation import logits_process

PROMPT_LENGTHS = (7, 4)
NEW_TOKENS = 10
# distinct outputs of generate: the least for a fixture, and enough to end the search early
LIVELY = 5.0
ENOUGH = 6.0


class Dull(Exception):
    """The drawn weights write the same token for ever, or a near tie decides what they write."""


def generation(
    spec: Spec, model: PreTrainedModel, rng: np.random.Generator
) -> tuple[dict[str, Any], Arrays, str]:
    """Generates continuations of two unequal prompts; the stop token is one that the model
    writes."""
    best: tuple[float, Any] = (-1.0, None)
    for _ in range(8):
        if best[0] >= ENOUGH:
            break
        # Without an encoder transformers counts positions in padding, so there is none.
        lengths = PROMPT_LENGTHS[:1] * 2 if spec.without_encoder else PROMPT_LENGTHS
        prompts = text(model, lengths, rng, left=spec.kind == "decoder")
        free = continue_(model, prompts, arguments(spec, model, None)["greedy"])["sequences"][
            :, -NEW_TOKENS:
        ]
        for stop in [
            int(token) for token in np.unique(free[:, 2:7]) if token not in prompts["input_ids"]
        ][:4]:
            ways = arguments(spec, model, stop)
            found = {way: continue_(model, prompts, settings) for way, settings in ways.items()}
            sequences = [tuple(map(tuple, found[way]["sequences"])) for way in ways]
            variety = len(set(sequences)) + 0.1 * len(
                np.unique(found["greedy"]["sequences"][:, -NEW_TOKENS:])
            )
            if variety > best[0] and agrees(model, prompts, ways, found):
                best = variety, (ways, prompts, found)
    if best[0] < LIVELY:
        raise Dull
    ways, prompts, found = best[1]
    arrays: Arrays = {f"generate/in/{key}": value for key, value in prompts.items()}
    for way, result in found.items():
        arrays |= {f"generate/{way}/{key}": value for key, value in result.items()}
    return ways, arrays, f"variety {best[0]:.1f} of {len(ways)}"


def arguments(spec: Spec, model: PreTrainedModel, stop: int | None) -> dict[str, dict[str, Any]]:
    """Returns the arguments of generate for each way of continuing; nothing is left to a generation
    config."""
    pad = model.config.pad_token_id
    common = {
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "eos_token_id": stop,
        "pad_token_id": pad,
    }
    if spec.kind == "seq2seq":
        common["decoder_start_token_id"] = model.config.decoder_start_token_id
        common["forced_eos_token_id"] = (
            stop if getattr(model.config, "forced_eos_token_id", None) is not None else None
        )
        common["forced_bos_token_id"] = 7 if spec.model_type == "mbart" else None
    beam = common | {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 1.0}
    ways = {
        "greedy": common | {"num_beams": 1},
        "beam": beam | {"early_stopping": False},
        "beam_early": beam | {"early_stopping": True},
        "beam_never": beam | {"early_stopping": "never", "length_penalty": 2.0},
        "beam_short": beam | {"early_stopping": False, "length_penalty": -0.5},
    }
    if spec.penalties:
        ways["penalties"] = ways["greedy"] | {
            "repetition_penalty": 1.7,
            "no_repeat_ngram_size": 2,
            "min_new_tokens": 8,
        }
    return ways


def continue_(model: PreTrainedModel, prompts: Arrays, settings: dict[str, Any]) -> Arrays:
    """Calls generate; returns the sequences, and scores of beams or log-probabilities of greedy
    tokens."""
    inputs = {key: torch.from_numpy(np.asarray(value, np.int64)) for key, value in prompts.items()}
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    result = model.generate(
        **inputs, **settings, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    sequences = result.sequences.numpy()
    if settings["num_beams"] > 1:
        return {"sequences": sequences, "sequences_scores": result.sequences_scores.numpy()}
    new = result.sequences[:, -len(result.logits) :]
    logprobs = (
        torch.stack(result.logits, 1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0]
    )
    return {"sequences": sequences, "logprobs": logprobs.numpy()}


def agrees(
    model: PreTrainedModel,
    prompts: Arrays,
    ways: dict[str, dict[str, Any]],
    found: dict[str, Arrays],
) -> bool:
    """Returns whether slightly perturbed weights write the same ids, so that no near tie decides a
    fixture."""
    nudged = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in nudged.parameters():
            parameter.mul_(
                1 + 1e-5 * torch.sin(torch.arange(parameter.numel())).reshape(parameter.shape)
            )
    return all(
        np.array_equal(continue_(nudged, prompts, settings)["sequences"], found[way]["sequences"])
        for way, settings in ways.items()
    )


def processors(seed: int) -> Arrays:
    """Computes logits before and after each sampling filter by itself; filtered logits are -inf."""
    rng = np.random.default_rng([seed, 1])
    logits = 2.0 * rng.standard_normal((3, 23)).astype(np.float32)
    ids = rng.integers(0, 23, (3, 12))
    filters = {
        "temperature_0.7": logits_process.TemperatureLogitsWarper(0.7),
        "top_k_5": logits_process.TopKLogitsWarper(5),
        "top_p_0.6": logits_process.TopPLogitsWarper(0.6),
        "min_p_0.2": logits_process.MinPLogitsWarper(0.2),
        "repetition_penalty_1.7": logits_process.RepetitionPenaltyLogitsProcessor(1.7),
        "no_repeat_ngram_size_2": logits_process.NoRepeatNGramLogitsProcessor(2),
        "no_repeat_ngram_size_1": logits_process.NoRepeatNGramLogitsProcessor(1),
    }
    made = {
        name: run(torch.from_numpy(ids), torch.from_numpy(logits.copy())).numpy()
        for name, run in filters.items()
    }
    return {"logits": logits, "input_ids": ids.astype(np.int32)} | made
