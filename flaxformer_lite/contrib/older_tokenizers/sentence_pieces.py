"""Builds the tokenizers of Llama, Gemma and T5, and of others, from a sentencepiece model alone.

The classes of the first three set steps of their own beside the model's pieces; for others, the
steps are the model's (Kudo & Richardson 2018, "SentencePiece").
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.older_tokenizers.folder import Folder, parse_model
from flaxformer_lite.text.added_tokens import listed_tokens
from flaxformer_lite.text.tokenizer import NUM_SENTINELS

SPACE = "\u2581"
NORMAL_PIECE = 1  # types of pieces in a model's file
CONTROL_PIECE = 3
USER_DEFINED = 4


def llama_pairs(folder: Folder) -> Tokenizer:
    """Builds Llama's tokenizer: byte pairs, without the model's normalization."""
    prefix = folder.flag("add_prefix_space", None)
    prefix = prefix is None or prefix
    scheme = "never"
    if prefix:
        scheme = "always" if folder.flag("legacy", False) else "first"
    made = Tokenizer(_by_number(folder.sentencepiece))
    made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", left=1))
    made.decoder = decoders.Sequence(steps)
    _add_own(made, folder)
    return made


def code_llama_pairs(folder: Folder) -> Tokenizer:
    """Builds the tokenizer of Code Llama, in which unknown letters have an id."""
    made = llama_pairs(folder)
    made.model.unk_token = folder.spelled("unk")
    return made


def gemma_pairs(folder: Folder) -> Tokenizer:
    """Builds Gemma's tokenizer: byte pairs in which spaces are letters, and none comes first."""
    made = Tokenizer(_by_number(folder.sentencepiece, unk_token=folder.spelled("unk")))
    made.normalizer = normalizers.Replace(" ", SPACE)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    _add_own(made, folder)
    return made


def t5_unigrams(folder: Folder) -> Tokenizer:
    """Builds T5's tokenizer: unigrams, and sentinels behind them in reverse order."""
    read = folder.sentencepiece
    sentinels = folder.config.get("extra_ids", NUM_SENTINELS)
    if type(sentinels) is not int or sentinels < 0:
        raise ConfigError("tokenizer_config.json: extra_ids: must be a number of sentinels.")
    names = [f"<extra_id_{k}>" for k in reversed(range(sentinels))]
    if not read.normalizer_spec.add_dummy_prefix:  # trained here, where texts keep their spaces
        made = exact_pieces(read)
        made.add_special_tokens([AddedToken(name, normalized=False) for name in names])
        return made
    vocab = [(piece.piece, piece.score) for piece in read.pieces]
    vocab += [(name, 0.0) for name in names]
    made = Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=False))
    if read.normalizer_spec.precompiled_charsmap:
        made.normalizer = normalizers.Precompiled(read.normalizer_spec.precompiled_charsmap)
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    made.decoder = decoders.Metaspace(SPACE, prepend_scheme="always", split=True)
    _add_own(made, folder)
    if not _lists_tokens(folder):
        made.add_special_tokens([AddedToken(name, normalized=False) for name in reversed(names)])
    return made


def pieces_of_model(folder: Folder) -> Tokenizer:
    """Builds the tokenizer of a model's own steps.

    Tokens for which the folder states the id of a piece are that piece's name.
    """
    read = folder.sentencepiece
    renamed = {index: token.content for token, index, _ in folder.added if index is not None}
    made = exact_pieces(read, renamed, legacy=folder.flag("legacy", True))
    _add_own(made, folder, user_defined=False)
    return made


def exact_pieces(
    read: Any, renamed: Mapping[int, str] | None = None, *, legacy: bool = True
) -> Tokenizer:
    """Builds a tokenizer that encodes as the sentencepiece library does.

    Of several ways to cut a text that are equally likely, it may take another.

    Args:
      read: a ModelProto.
      renamed: other names of pieces by id.
      legacy: whether the text after each special token gets the space that the first one gets.
    """
    names = [piece.piece for piece in read.pieces]
    renamed = renamed or {}
    kept = {name for index, name in enumerate(names) if index not in renamed}
    for index, name in renamed.items():
        if index < len(names) and name not in kept:
            names[index] = name
    own = []
    for name, piece in zip(names, read.pieces, strict=True):
        if piece.type == USER_DEFINED:
            own.append(name)
    if read.trainer_spec.model_type == read.trainer_spec.UNIGRAM:
        scores = [piece.score for piece in read.pieces]
        model: models.Model = models.Unigram(
            list(zip(names, scores, strict=True)),
            unk_id=read.trainer_spec.unk_id,
            byte_fallback=read.trainer_spec.byte_fallback,
        )
    else:
        ranks = {}
        for index, piece in enumerate(read.pieces):
            if piece.type == NORMAL_PIECE:
                ranks[names[index]] = (-piece.score, index)
        model = models.BPE(
            {name: index for index, name in enumerate(names)},
            _pairs(ranks),
            unk_token=read.trainer_spec.unk_piece,
            fuse_unk=True,
            byte_fallback=read.trainer_spec.byte_fallback,
            ignore_merges=bool(own),
        )
    made = Tokenizer(model)
    spec = read.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if spec.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if spec.add_dummy_prefix and legacy:
        # the library puts a space before a text that begins with one, too
        steps.append(normalizers.Replace(Regex(rf"\A{SPACE}"), SPACE * 2))
    made.normalizer = normalizers.Sequence(steps)
    before: list[pre_tokenizers.PreTokenizer] = []
    if spec.add_dummy_prefix:
        scheme = "always" if legacy else "first"
        before.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False))
    if own:
        longest_first = sorted(own, key=len, reverse=True)
        before.append(
            pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
        )
    if before:
        made.pre_tokenizer = pre_tokenizers.Sequence(before)
    after: list[decoders.Decoder] = [decoders.Replace(SPACE, " ")]
    if read.trainer_spec.byte_fallback:
        after.append(decoders.ByteFallback())
    if spec.add_dummy_prefix or read.trainer_spec.byte_fallback:
        after.append(decoders.Fuse())
    if spec.add_dummy_prefix:
        after.append(decoders.Strip(" ", left=1))
    made.decoder = decoders.Sequence(after)
    return made


def express_pieces(definition: bytes) -> str:
    """Returns a tokenizer.json that encodes as a sentencepiece model does, with T5's sentinels.

    Args:
      definition: the content of the model's file.
    """
    read = parse_model(definition)
    made = exact_pieces(read)
    names = [piece.piece for piece in read.pieces if piece.type == CONTROL_PIECE]
    names += [f"<extra_id_{k}>" for k in reversed(range(NUM_SENTINELS))]
    made.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    return made.to_str()


def _add_own(made: Tokenizer, folder: Folder, *, user_defined: bool = True) -> None:
    """Adds the model's control tokens, and those of its user, unless the folder lists tokens."""
    if _lists_tokens(folder):
        return
    for index, piece in enumerate(folder.sentencepiece.pieces):
        is_special = piece.type == CONTROL_PIECE
        if is_special or (user_defined and piece.type == USER_DEFINED):
            name = made.id_to_token(index)
            made.add_tokens([AddedToken(name, normalized=False, special=is_special)])


def _lists_tokens(folder: Folder) -> bool:
    return "extra_special_tokens" in folder.config or bool(listed_tokens(folder.config))


def _by_number(read: Any, unk_token: str | None = None) -> models.BPE:
    """Returns byte pairs that are merged in the order of the pieces that they make."""
    ranks = {piece.piece: (index,) for index, piece in enumerate(read.pieces)}
    vocab = {name: index for name, (index,) in ranks.items()}
    return models.BPE(vocab, _pairs(ranks), unk_token=unk_token, fuse_unk=True, byte_fallback=True)


def _pairs(ranks: Mapping[str, tuple[float, ...]]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces whose concatenation is a piece, in the order of its rank."""
    ranked = list(_ranked(ranks))
    ranked.sort(key=lambda pair: (ranks["".join(pair)], len(pair[0])))
    return ranked


def _ranked(ranks: Mapping[str, tuple[float, ...]]) -> Iterable[tuple[str, str]]:
    for piece in ranks:
        for at in range(1, len(piece)):
            if piece[:at] in ranks and piece[at:] in ranks:
                yield piece[:at], piece[at:]
