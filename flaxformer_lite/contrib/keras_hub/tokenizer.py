"""The tokenizer of a KerasHub preset, as files of transformers.

Reference: keras_hub/src/models/*/*_tokenizer.py and tokenizers/byte_pair_tokenizer.py.
"""

import json
import shutil
from pathlib import Path

from flaxformer_lite.contrib.keras_hub.kinds import BYTE_PAIRS, Kind
from flaxformer_lite.files.read import Json, quote_name, quote_value, read_object, read_text
from flaxformer_lite.pretrained.safetensors import WeightsError

# Llama 3's pattern, which its published tokenizer has; SPLIT_PATTERN_TOKENIZERS in KerasHub.
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_START = "<|begin_of_text|>"
LLAMA3_END = "<|end_of_text|>"
LLAMA3_SPECIAL = (
    LLAMA3_START,
    LLAMA3_END,
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
MOST_BYTES = 1 << 28  # of a vocabulary or its merges


def assets(place: Path, kind: Kind) -> dict[Path, str]:
    """Returns the files of the tokenizer, and their names in transformers; {} unless all exist."""
    folder = place / "assets" / "tokenizer"
    named = {folder / theirs: name for theirs, name in kind.files.items()}
    return named if all(path.is_file() for path in named) else {}


def write(place: Path, kind: Kind, made: Path) -> None:
    """Writes the files of the tokenizer into `made`; nothing if the preset has none.

    Raises:
      WeightsError: a file is damaged.
    """
    files = assets(place, kind)
    if not files:
        return
    settings: Json = read_object(place / "tokenizer.json", error=WeightsError).get("config") or {}
    config = dict(kind.tokenizer)
    if config["tokenizer_class"] == "PreTrainedTokenizerFast":
        (made / "tokenizer.json").write_text(_llama3(place, settings))
    else:
        for source, name in files.items():
            shutil.copyfile(source, made / name)
    if config["tokenizer_class"] == "BertTokenizer":
        config["do_lower_case"] = bool(settings.get("lowercase", False))
        config["strip_accents"] = bool(settings.get("strip_accents", False))
    (made / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _llama3(place: Path, settings: Json) -> str:
    """Makes Llama 3's tokenizer.json of its vocabulary and merges."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    folder = place / "assets" / "tokenizer"
    vocabulary_file, merges_file = (folder / name for name in BYTE_PAIRS)
    vocabulary = read_object(vocabulary_file, error=WeightsError)
    merges = []
    text = read_text(merges_file, limit=MOST_BYTES, error=WeightsError)
    for line in text.splitlines():
        if line and not line.startswith("#version:"):
            first, _, second = line.partition(" ")
            merges.append((first, second))
    special = [token for token in LLAMA3_SPECIAL if token in vocabulary]
    if LLAMA3_START not in special or LLAMA3_END not in special:
        raise WeightsError(f"{vocabulary_file}: without {LLAMA3_START} or {LLAMA3_END}.")
    try:
        made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # tokenizers raises plain Exception
        raise WeightsError(
            f"{merges_file}: not the merges of vocabulary.json"
            f" ({quote_name(quote_value(str(error)))})."
        ) from None
    made.add_special_tokens(special)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(
                add_prefix_space=bool(settings.get("add_prefix_space", False)), use_regex=False
            ),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(
        single=f"{LLAMA3_START} $A",
        pair=f"{LLAMA3_START} $A {LLAMA3_START}:1 $B:1",
        special_tokens=[(LLAMA3_START, vocabulary[LLAMA3_START])],
    )
    return made.to_str()
