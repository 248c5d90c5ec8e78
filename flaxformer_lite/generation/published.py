"""The generation settings of published weights, from generation_config.json or, in older ones,
config.json."""

from pathlib import Path
from typing import Any

from flaxformer_lite.files.read import Kind, read_object
from flaxformer_lite.pretrained import places

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
DRAWS = {
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
}  # transformers' defaults if do_sample is on


def published_settings(path: str | Path) -> dict[str, Any]:
    """Reads the authors' settings as keyword arguments of `generate`, except lengths.

        >>> generate(model, params, prompts, **published_settings(path) | {"max_new_tokens": 64})  # doctest: +SKIP

    Args:
      path: a directory written by transformers' save_pretrained; without either file, nothing is
        set.

    Raises:
      ConfigError: a file is not JSON, or a setting has another type.
    """
    found: dict[str, Any] = {}
    folder = places.on_disk(path, weights=False)
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        if file.exists():
            found |= {
                key: value for key, value in read_object(file, KINDS).items() if value is not None
            }
    settings = {
        key: tuple(value) if isinstance(value := found[key], list) else value
        for key in SAME
        if key in found
    }
    words = [
        word[0]
        for word in found.get("bad_words_ids", ())
        if isinstance(word, list) and len(word) == 1
    ]
    if words:
        settings["suppress_tokens"] = (*settings.get("suppress_tokens", ()), *words)
    if found.get("do_sample") and settings.get("num_beams", 1) == 1:
        settings |= {key: found.get(key, default) for key, default in DRAWS.items()}
    # A model without a padding token pads with its first stop token, as in transformers.
    if "pad_token_id" not in settings and settings.get("eos_token_id", ()) != ():
        stops = settings["eos_token_id"]
        settings["pad_token_id"] = stops if isinstance(stops, int) else stops[0]
    return settings
