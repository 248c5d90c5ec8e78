"""The generation settings of published weights.

They are in generation_config.json or, in older ones, in config.json.
"""

import logging
import math
from pathlib import Path

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, Kind, quote_value, read_object

LOG = logging.getLogger("flaxformer_lite")

SAME = (
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "suppress_tokens",
)
KINDS: dict[str, Kind] = {
    "eos_token_id": (int, list),
    "suppress_tokens": list,
    "bad_words_ids": list,
    "do_sample": bool,
    "num_beams": int,
}
# Tokens that are only compared with what is written, or that fill finished rows.
OPTIONAL = ("eos_token_id", "pad_token_id", "suppress_tokens")
# transformers' defaults if do_sample is on
DRAWS = {
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
}

# What transformers' generate computes and ours does not, with the values that turn it off.
OTHERS: dict[str, tuple[object, ...]] = {
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_decoder_ids": ([],),
    "guidance_scale": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": ({}, []),
    "token_healing": (False,),
    "watermarking_config": (),
}
OTHER_DRAWS = {"epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": (), "typical_p": (1,)}
OTHER_BEAMS = {"renormalize_logits": (False,)}


def read_settings(folder: Path) -> Json:
    """Reads the authors' settings as keyword arguments of `generate`, except lengths.

        >>> settings = read_settings(folder) | {"max_new_tokens": 64}  # doctest: +SKIP
        >>> generate(model, params, prompts, **settings)  # doctest: +SKIP

    As in transformers, config.json counts only where there is no generation_config.json, and a stop
    token beyond the vocabulary stops nothing: it is left out with a notice.

    Args:
      folder: a directory on this machine, written by transformers' save_pretrained; without either
        file, nothing is set.

    Raises:
      ConfigError: a file is not JSON, a setting has another type, or is one that transformers
        computes and `generate` does not.
    """
    file = folder / "generation_config.json"
    if not file.exists():
        file = folder / "config.json"
    if not file.exists():
        return {}
    values = {key: value for key, value in read_object(file, KINDS).items() if value is not None}
    _refuse_others(file, values)
    settings = {}
    for key in SAME:
        if key in values:
            value = values[key]
            settings[key] = tuple(value) if isinstance(value, list) else value
    words = _single_tokens(file, values.get("bad_words_ids", []))
    if words:
        settings["suppress_tokens"] = (*settings.get("suppress_tokens", ()), *words)
    if values.get("do_sample") and settings.get("num_beams", 1) == 1:
        settings |= {key: values.get(key, default) for key, default in DRAWS.items()}
    path = folder / "config.json"
    config = read_object(path) if path.exists() else {}
    _leave_out_unwritable(file, settings, _vocabulary(config))
    two_sided = config.get("is_encoder_decoder") is True
    if two_sided and "decoder_start_token_id" not in settings and "bos_token_id" in values:
        settings["decoder_start_token_id"] = values["bos_token_id"]  # as in transformers
    # A model without a padding token pads with its first stop token, as in transformers.
    if "pad_token_id" not in settings and settings.get("eos_token_id", ()) != ():
        stops = settings["eos_token_id"]
        settings["pad_token_id"] = stops if isinstance(stops, int) else stops[0]
    return settings


def _vocabulary(config: Json) -> float:
    """Returns the size of the largest vocabulary in a config.json, infinite if it names none."""
    nested = [value for value in config.values() if isinstance(value, dict)]
    sizes = [part["vocab_size"] for part in (config, *nested) if "vocab_size" in part]
    return max((size for size in sizes if isinstance(size, int)), default=math.inf)


def _leave_out_unwritable(file: Path, settings: Json, vocab: float) -> None:
    """Leaves out tokens that the model cannot write, as of small models with a large one's ids."""
    for name in OPTIONAL:
        given = settings.get(name, ())
        several = given if isinstance(given, tuple) else (given,)
        # What is no number at all is for Settings to refuse.
        beyond = [t for t in several if isinstance(t, int) and not 0 <= t < vocab]
        if not beyond:
            continue
        LOG.warning(
            "%s: %s: left out what is not in the vocabulary of %s tokens: %s.",
            file,
            name,
            vocab,
            beyond,
        )
        kept = tuple(t for t in several if t not in beyond)
        if kept:
            settings[name] = kept
        else:
            del settings[name]


def _refuse_others(file: Path, values: Json) -> None:
    others = dict(OTHERS)
    if values.get("num_beams", 1) > 1:
        others |= OTHER_BEAMS
    elif values.get("do_sample"):
        others |= OTHER_DRAWS
    for name, off in others.items():
        if name in values and values[name] not in off:
            raise ConfigError(
                f"{file}: {name}={quote_value(values[name])}: transformers' generate computes with"
                " it, and ours does not; remove it from the file to write without it."
            )


def _single_tokens(file: Path, words: list) -> list[int]:
    """Returns the tokens that are never written, of `bad_words_ids`."""
    for word in words:
        if not isinstance(word, list) or len(word) != 1:
            raise ConfigError(
                f"{file}: bad_words_ids={quote_value(words)}: only words of one token each are"
                f" supported; remove {quote_value(word)} from the file to write without this rule."
            )
    return [word[0] for word in words]
