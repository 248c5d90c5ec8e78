"""Tokenizers of M2M100 and WMT21: pieces numbered by vocab.json, and a token for each language."""

import re
from pathlib import Path
from typing import ClassVar

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.older_tokenizers.numbered_pieces import NumberedSentencePieces
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.registry import did_you_mean
from flaxformer_lite.text.added_tokens import content_of, listed_tokens

# In the order of their ids, which follow the vocabulary.
LANGUAGES = {
    "m2m100": re.findall(
        r"\w+",
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl"
        " gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml"
        " mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th"
        " tl tn tr uk ur uz vi wo xh yi yo zh zu",
    ),
    "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"],
}


class M2M100(NumberedSentencePieces):
    """The pieces of sentencepiece.bpe.model, with the ids of vocab.json, and languages.

    A text begins with the token of its language, `src_lang` of tokenizer_config.json, and ends with
    `</s>`. Tokens of languages are recognized in a text if the files list them as special tokens.

    Attributes:
      language_id: the id of the source language.
    """

    model_file = "sentencepiece.bpe.model"
    special: ClassVar = {
        "bos": "<s>",
        "eos": "</s>",
        "sep": "</s>",
        "pad": "<pad>",
        "unk": "<unk>",
    }

    def __init__(self, folder: Path, config: Json):
        super().__init__(folder)
        codes = config.get("language_codes") or "m2m100"
        if codes not in LANGUAGES:
            raise ConfigError(
                f"tokenizer_config.json: language_codes={quote_value(codes)}: must be"
                f" {' or '.join(LANGUAGES)}."
            )
        numbers: dict[str, int] = {}
        for language in LANGUAGES[codes]:
            numbers[f"__{language}__"] = len(self._ids) + len(numbers)
        source = config.get("src_lang") or "en"
        if f"__{source}__" not in numbers:
            near = did_you_mean(str(source), LANGUAGES[codes])
            raise ConfigError(
                f"tokenizer_config.json: src_lang={quote_value(source)}: no such language{near}."
            )
        self.others = tuple(numbers)
        self.language_id = numbers[f"__{source}__"]
        self._languages = set(numbers.values())
        self.vocab_size += len(numbers)
        listed = map(content_of, listed_tokens(config))
        self._listed = {token: numbers[token] for token in listed if token in numbers}

    @property
    def spelled(self) -> dict[str, int]:
        return super().spelled | self._listed

    def specials(self) -> set[int]:
        return super().specials() | self._languages
