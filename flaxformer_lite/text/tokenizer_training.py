"""Training of tokenizers on the run's own text, offline; the same text gives the same tokenizer."""

import io
from collections.abc import Iterable, Iterator

import sentencepiece
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from flaxformer_lite.config import ConfigError, TokenizerConfig
from flaxformer_lite.text.tokenizer import (
    NUM_BYTES,
    NUM_SENTINELS,
    SPECIALS,
    Bytes,
    HuggingFace,
    SentencePiece,
    Tokenizer,
)

SMALLEST = {
    "byte_bpe": len(SPECIALS) + NUM_BYTES + NUM_SENTINELS,
    "sentencepiece": len(SPECIALS) + 1 + NUM_BYTES + NUM_SENTINELS + 64,
    "words": len(SPECIALS) + 1 + NUM_SENTINELS + 1,
}
# Characters of a longer text that are given to `train`, as their number takes memory.
MOST = {
    "byte_bpe": 1 << 26,
    "sentencepiece": 3 << 22,  # 20 bytes for each
    "words": 1 << 40,  # only counts are kept
}
UNKNOWN = "[UNK]"
WORD = (  # letters, digits and inner apostrophes; what stands between words is left out
    r"\w+(?:['\u2019]\w+)*"
)


def train(cfg: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Trains the tokenizer that the config names.

    The same texts give the same tokenizer, bit for bit.

    Args:
      cfg: name, vocab_size and min_count.
      texts: read once, and not kept in memory.

    Raises:
      ConfigError: vocab_size is too small for bytes and special tokens.
    """
    if cfg.name == "bytes":
        return Bytes()
    smallest = SMALLEST[cfg.name]
    if cfg.vocab_size < smallest:
        raise ConfigError(
            f"data.tokenizer.vocab_size={cfg.vocab_size}: {cfg.name} needs at least {smallest},"
            f" with special tokens and {NUM_SENTINELS} sentinels; or use data.tokenizer.name=bytes."
        )
    return TRAINERS[cfg.name](cfg, texts)


def _train_byte_bpe(cfg: TokenizerConfig, texts: Iterable[str]) -> HuggingFace:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=cfg.vocab_size - NUM_SENTINELS,
        special_tokens=list(SPECIALS),
        # All bytes, or those that the training text lacks could not be encoded.
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_sentinels(tokenizer)


def _train_sentencepiece(cfg: TokenizerConfig, texts: Iterable[str]) -> SentencePiece:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(texts),
            model_writer=model,
            vocab_size=cfg.vocab_size - NUM_SENTINELS,
            hard_vocab_limit=False,  # a small text has fewer pieces
            byte_fallback=True,
            # This and the next three: decoding returns the text as it was, its indentation
            # included.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=3,
            pad_piece="[PAD]",
            eos_piece="[EOS]",
            bos_piece="[BOS]",
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"data.tokenizer.name='sentencepiece': cannot be trained on this text ({error})."
        ) from error
    return SentencePiece(model.getvalue())


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    """Yields lines, cut to the 4192 bytes that the trainer accepts."""
    for text in texts:
        for line in text.splitlines():
            # 1000 characters are 4000 bytes at most.
            yield from (line[i : i + 1000] for i in range(0, len(line), 1000))


def _train_words(cfg: TokenizerConfig, texts: Iterable[str]) -> HuggingFace:
    """Takes the most frequent words, in lower case."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)  # puts spaces between words
    trainer = trainers.WordLevelTrainer(
        vocab_size=cfg.vocab_size - NUM_SENTINELS,
        min_frequency=cfg.min_count,
        special_tokens=[*SPECIALS, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() == len(SPECIALS) + 1:
        raise ConfigError(
            f"data.tokenizer.min_count={cfg.min_count}: no word of the text occurs as often;"
            " lower it."
        )
    return _with_sentinels(tokenizer)


def _with_sentinels(tokenizer: tokenizers.Tokenizer) -> HuggingFace:
    tokenizer.add_special_tokens([f"<extra_id_{k}>" for k in reversed(range(NUM_SENTINELS))])
    return HuggingFace(tokenizer.to_str().encode())


TRAINERS = {
    "byte_bpe": _train_byte_bpe,
    "sentencepiece": _train_sentencepiece,
    "words": _train_words,
}
