"""Builds tokenizers from vocab.txt, vocab.json or a sentencepiece model.

Special tokens are added by the caller.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.older_tokenizers.folder import MAX_VOCABULARY_BYTES, Folder
from flaxformer_lite.files.read import read_object, read_text
from flaxformer_lite.text.added_tokens import ROLES, content_of, listed_tokens
from flaxformer_lite.text.token_text import BYTE_OF

SPACE = "\u2581"
UNUSED = tuple(f"<unk_{k}>" for k in range(2, 103))
Piece = tuple[str, float]
Steps = list[normalizers.Normalizer]


def word_pieces(folder: Folder) -> Tokenizer:
    """Builds BERT's tokenizer from vocab.txt."""
    lines = read_text(folder.path / "vocab.txt", limit=MAX_VOCABULARY_BYTES).split("\n")
    if lines[-1] == "":
        lines.pop()
    vocab = {token.rstrip("\r"): index for index, token in enumerate(lines)}
    if folder.spelled("unk") not in vocab:
        raise ValueError(f"{folder.spelled('unk')} is not in it")
    made = Tokenizer(models.WordPiece(vocab, unk_token=folder.spelled("unk")))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=folder.flag("tokenize_chinese_chars", True),
        strip_accents=folder.flag("strip_accents", None),
        lowercase=folder.flag("do_lower_case", True),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(prefix="##")
    return made


def whole_words(folder: Folder) -> Tokenizer:
    """Builds ESM's tokenizer, which takes the longest token that matches at each position."""
    lines = read_text(folder.path / "vocab.txt", limit=MAX_VOCABULARY_BYTES).splitlines()
    vocab = {line.strip(): index for index, line in enumerate(lines)}
    longest_first = sorted(filter(None, vocab), key=len, reverse=True)
    known = Regex("|".join(map(re.escape, longest_first)))
    made = Tokenizer(models.WordLevel(vocab, unk_token=folder.spelled("unk")))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[\x1c-\x1f]+"), "removed"),  # spaces of Python's split
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(known, "isolated"),
        ]
    )
    return made


def byte_pairs(folder: Folder, *, space: bool = False) -> Tokenizer:
    """Builds GPT-2's tokenizer from vocab.json and merges.txt."""
    vocab = read_object(folder.path / "vocab.json")
    lines = read_text(folder.path / "merges.txt", limit=MAX_VOCABULARY_BYTES).split("\n")
    merges = []
    for line in lines:
        if line.strip() and not line.startswith("#version"):
            merges.append(_pair(line))
    made = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    space = folder.flag("add_prefix_space", space)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.decoder = decoders.ByteLevel()
    return made


def spaced_byte_pairs(folder: Folder) -> Tokenizer:
    """Builds Blenderbot's tokenizer, which puts a space before a text."""
    return byte_pairs(folder, space=True)


def byte_tokens(folder: Folder) -> Tokenizer:
    """Builds ByT5's tokenizer: three special tokens, the bytes of UTF-8, and 125 sentinels."""
    special = [folder.spelled(role) for role in ("pad", "eos", "unk")]
    vocab = {character: byte + len(special) for character, byte in BYTE_OF.items()}
    vocab |= {token: index for index, token in enumerate(special)}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def nllb(folder: Folder) -> Tokenizer:
    """Builds NLLB's tokenizer, whose sentencepiece model is a byte-pair encoding."""
    read = folder.sentencepiece
    if read.trainer_spec.model_type != read.trainer_spec.BPE:
        raise ValueError("its sentencepiece model must be of byte pairs")
    languages = [content_of(token) or "" for token in listed_tokens(folder.config)]
    if not languages:
        raise ConfigError(
            "special_tokens_map.json: additional_special_tokens must name the languages, whose ids"
            " follow the vocabulary."
        )
    names = [folder.spelled(role) for role in ("bos", "pad", "eos", "unk")]
    names += [piece for piece, _ in _scored(folder) if piece not in names]
    vocab = {piece: index for index, piece in enumerate([*names, *languages])}
    made = Tokenizer(
        models.BPE(vocab, list(_merges(names)), unk_token=folder.spelled("unk"), fuse_unk=True)
    )
    return _with_spaces(made, folder, of_file_steps, words=True)


def _merges(names: list[str]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces whose concatenation is a piece, in the order of that piece."""
    numbers = {piece: index for index, piece in enumerate(names)}
    ranked = []
    for piece, index in numbers.items():
        for at in range(1, len(piece)):
            left = piece[:at]
            right = piece[at:]
            if left in numbers and right in numbers:
                ranked.append((index, len(left), len(right), left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def unigram(
    pieces: Callable[[Folder], Iterable[Piece]],
    normalizer: Callable[[Folder, Steps], Steps],
    *,
    words: bool,
) -> Callable[[Folder], Tokenizer]:
    """Returns a function that builds a tokenizer from a unigram model of sentencepiece.

    Args:
      pieces: function that returns the vocabulary in the order of ids.
      normalizer: function of the folder and the normalizers of the model's file that returns the
        normalizers to use.
      words: whether to split at white space first, which is left out.
    """

    def make(folder: Folder) -> Tokenizer:
        read = folder.sentencepiece
        if read.trainer_spec.model_type != read.trainer_spec.UNIGRAM:
            raise ValueError("its sentencepiece model must be of unigrams")
        vocab = list(pieces(folder))
        names = [piece for piece, _ in vocab]
        made = Tokenizer(models.Unigram(vocab, names.index(folder.spelled("unk")), False))
        return _with_spaces(made, folder, normalizer, words=words)

    return make


def _with_spaces(
    made: Tokenizer,
    folder: Folder,
    normalizer: Callable[[Folder, Steps], Steps],
    *,
    words: bool,
) -> Tokenizer:
    of_file: Steps = []
    charsmap = folder.sentencepiece.normalizer_spec.precompiled_charsmap
    if charsmap:
        of_file.append(normalizers.Precompiled(charsmap))
    steps = normalizer(folder, of_file)
    if steps:
        made.normalizer = normalizers.Sequence(steps)
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
    before: list[pre_tokenizers.PreTokenizer] = []
    if words:
        before.append(pre_tokenizers.WhitespaceSplit())
    if "split_by_punct" in folder.config and folder.flag("split_by_punct", False):
        before = [pre_tokenizers.Punctuation("isolated")]
    made.pre_tokenizer = pre_tokenizers.Sequence([*before, spaces])
    made.decoder = decoders.Metaspace(SPACE, prepend_scheme="always")
    roles = [folder.spelled(role) for role in ROLES]
    for piece in folder.sentencepiece.pieces:
        if piece.type in (piece.CONTROL, piece.USER_DEFINED):
            special = piece.type == piece.CONTROL or piece.piece in roles
            add_token(made, AddedToken(piece.piece, normalized=False, special=special))
    return made


def add_token(made: Tokenizer, token: AddedToken) -> None:
    """Adds a token to the vocabulary, among the special tokens if it is one."""
    if token.special:
        made.add_special_tokens([token])
    else:
        made.add_tokens([token])


def plain_pieces(folder: Folder) -> Iterable[Piece]:
    """Returns the pieces in the order of the file."""
    return _scored(folder)


def fairseq_pieces(*last: str) -> Callable[[Folder], list[Piece]]:
    """Returns a function that lists pieces in fairseq's order.

    Four special tokens come first, then the pieces, then the tokens `last` and the mask, if any.
    """

    def pieces(folder: Folder) -> list[Piece]:
        first = [folder.spelled(role) for role in ("bos", "pad", "eos", "unk")]
        # Without the file's own <unk>, <s> and </s>, which the four replace.
        rest = list(_scored(folder))[3:]
        ends = list(last)
        if "mask" in folder.kind.tokens:
            ends.append(folder.spelled("mask"))
        return [*_zeros(first), *rest, *_zeros(ends)]

    return pieces


def camembert_pieces(folder: Folder) -> list[Piece]:
    """Returns the pieces behind CamemBERT's five special tokens, with a mask at the end."""
    first = ["<s>NOTUSED", folder.spelled("pad"), "</s>NOTUSED", folder.spelled("unk")]
    # Without the file's own <unk>.
    rest = list(_scored(folder))[1:]
    # So unlikely that no text is cut into it.
    return [*_zeros(first), ("<unk>NOTUSED", -100.0), *rest, *_zeros([folder.spelled("mask")])]


def pegasus_pieces(folder: Folder) -> list[Piece]:
    """Returns the pieces behind Pegasus's special and unused tokens."""
    first = [folder.spelled("pad"), folder.spelled("eos"), "<mask_1>", folder.spelled("mask")]
    unused = [(token, -100.0) for token in UNUSED]
    # Without the file's own <pad> and </s>.
    return [*_zeros(first), *unused, *list(_scored(folder))[2:]]


def of_file_steps(_: Folder, of_file: Steps) -> Steps:
    return of_file


def no_steps(_: Folder, __: Steps) -> Steps:
    return []


def one_space_steps(_: Folder, of_file: Steps) -> Steps:
    return [*of_file, normalizers.Replace(Regex(" {2,}"), " ")]


def pegasus_steps(_: Folder, of_file: Steps) -> Steps:
    steps = of_file or [normalizers.Replace(Regex(r"\n"), " ")]
    return [*steps, normalizers.Replace(Regex(" {2,}"), " ")]


def big_bird_steps(_: Folder, __: Steps) -> Steps:
    return [normalizers.Replace(Regex(" {2,}"), SPACE)]


def albert_steps(folder: Folder, of_file: Steps) -> Steps:
    steps: Steps = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not folder.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return [*steps, *of_file]


def deberta_steps(folder: Folder, _: Steps) -> Steps:
    steps: Steps = []
    if folder.flag("do_lower_case", False):
        steps.append(normalizers.Lowercase())
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    return steps


def _scored(folder: Folder) -> Iterator[Piece]:
    return ((piece.piece, piece.score) for piece in folder.sentencepiece.pieces)


def _zeros(tokens: Iterable[str]) -> list[Piece]:
    return [(token, 0.0) for token in tokens]


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.rstrip("\r").partition(" ")
    return left, right
