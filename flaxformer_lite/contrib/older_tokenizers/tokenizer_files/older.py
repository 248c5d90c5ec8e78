"""Tokenizers of vocab.txt, vocab.json with merges.txt, or a sentencepiece model."""

from pathlib import Path

from flaxformer_lite.contrib.older_tokenizers.blenderbot_small import MERGES, BlenderbotSmall
from flaxformer_lite.contrib.older_tokenizers.kinds import READ, make_tokenizer
from flaxformer_lite.contrib.older_tokenizers.m2m_100 import M2M100
from flaxformer_lite.contrib.older_tokenizers.marian import Marian
from flaxformer_lite.contrib.older_tokenizers.numbered_pieces import VOCABULARY, NumberedPieces
from flaxformer_lite.contrib.older_tokenizers.sentence_pieces import express_pieces
from flaxformer_lite.files.read import Json
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer

__all__ = ["READ", "express_pieces", "make_tokenizer", "read_numbered"]


def read_numbered(
    folder: Path, kind: str | None, config: Json, template: str
) -> PublishedTokenizer | None:
    """Reads a tokenizer with a vocab.json that no tokenizer.json can express; else returns None."""

    def has(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if kind == "marian" and has(Marian.model_file, VOCABULARY):
        marian = Marian(folder)
        marian.check_added(folder, config)
        return PublishedTokenizer(marian, config, template, marian.spelled, after=(marian.eos_id,))
    if kind == "m2m_100" and has(M2M100.model_file, VOCABULARY):
        m2m_100 = M2M100(folder, config)
        m2m_100.check_added(folder, config)
        return PublishedTokenizer(
            m2m_100,
            _usual(m2m_100) | config,
            template,
            m2m_100.spelled,
            before=(m2m_100.language_id,),
            after=(m2m_100.eos_id,),
        )
    if kind == "blenderbot-small" and has(MERGES, VOCABULARY):
        small = BlenderbotSmall(folder)
        small.check_added(folder, config)
        return PublishedTokenizer(small, _usual(small) | config, template, small.spelled)
    return None


def _usual(inner: NumberedPieces) -> Json:
    """Returns the special tokens for where tokenizer_config.json leaves them out."""
    return {f"{role}_token": token for role, token in inner.special.items()}
