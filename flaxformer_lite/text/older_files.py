"""Tokenizers of checkpoints that are older than tokenizer.json, made of the files that they have.

    vocab.txt                    BERT, DistilBERT, ELECTRA, MPNet, ESM
    vocab.json and merges.txt    GPT-2, OPT, RoBERTa, BART, DeBERTa
    a sentencepiece model        ALBERT, XLM-R, CamemBERT, DeBERTa-v2, mBART, NLLB, PLBART, Pegasus,
                                 BigBird
    none                         ByT5

What is made is what transformers makes of the same files: a model of the `tokenizers` library, a
normalizer, a pre-tokenizer, and the special tokens around texts.
"""

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json, brief, read_object, read_text
from flaxformer_lite.text import sentencepiece_file
from flaxformer_lite.text.escape_specials import library_errors
from flaxformer_lite.text.sentencepiece_file import SentencePieceFile, read_sentencepiece
from flaxformer_lite.text.token_text import BYTE_OF

MODELS = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
SPACE = "\u2581"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # the order in which they are added
LARGEST = 1 << 28  # bytes of a vocabulary
Piece = tuple[str, float]

BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
PROTEIN = {"eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "cls": "<cls>", "mask": "<mask>"}
FAIRSEQ = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}
MBART = re.findall(
    r"\w+",
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT"
    " lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN",
)
MBART50 = re.findall(
    r"\w+",
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF"
    " pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI",
)

PLBART: dict[str, tuple[str, ...]] = {"base": ("java", "python", "en_XX")}
PLBART["multi"] = (*PLBART["base"], "javascript", "php", "ruby", "go")


@dataclass(frozen=True)
class Kind:
    """The tokenizer of a family of checkpoints.

    Attributes:
      make: makes the tokenizer, without special tokens, of a folder.
      tokens: the spelling of special tokens by role, where the folder does not say.
      around: the special tokens around text A, and around A and B, by role; `lang` is that of the
        language.
      types: whether the second text and what follows it are of type 1.
      strips: roles whose tokens take the spaces around them, `lstrip` and `rstrip`.
      others: returns further special tokens.
    """

    make: Callable[["Folder"], Tokenizer]
    tokens: dict[str, str]
    around: tuple[str, str] = ("A", "A B")
    types: bool = False
    strips: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: Callable[["Folder"], Iterable[str]] = lambda _: ()


class Folder:
    """The files of a checkpoint.

    Attributes:
      path: the directory.
      config: of tokenizer_config.json and special_tokens_map.json.
      kind: how it is tokenized.
    """

    def __init__(self, path: Path, config: Json, kind: Kind):
        self.path = path
        self.config = config
        self.kind = kind

    def spelled(self, role: str) -> str:
        """Returns the spelling of a special token; "" where there is none."""
        return _content(self._token(role)) or ""

    def _token(self, role: str) -> Any:
        token = self.config.get(f"{role}_token", self.kind.tokens.get(role))
        if token is not None and _content(token) is None:
            raise ConfigError(
                f"tokenizer_config.json: {role}_token={brief(token)}: must be a text."
            )
        return token

    def flag(self, name: str, usual: bool | None) -> Any:
        """Returns a setting that is true or false.

        Raises:
          ConfigError: it is something else.
        """
        value = self.config.get(name, usual)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"tokenizer_config.json: {name}: must be true or false.")
        return value

    @functools.cached_property
    def sentencepiece(self) -> SentencePieceFile:
        return read_sentencepiece(_files(self.path, MODELS)[0])

    @property
    def added(self) -> list[AddedToken]:
        """The tokens that the vocabulary may lack, in the order of their ids."""
        tokens = []
        for _, token in self.numbered:
            tokens.append(_added(token, special=bool(token.get("special"))))
        for role in ROLES:
            named = self._token(role)
            if isinstance(named, str):
                named = {"content": named, **dict.fromkeys(self.kind.strips.get(role, ()), True)}
            if named:
                tokens.append(_added(named, special=True))
        for name in (*self.kind.others(self), *_listed(self.config)):
            tokens.append(_added({"content": name}, special=True))
        return tokens

    @functools.cached_property
    def numbered(self) -> list[tuple[int, Json]]:
        """The tokens for which the files state an id, by id."""
        decoder = self.config.get("added_tokens_decoder") or {}
        tokens = [(int(index), token) for index, token in decoder.items()]
        if not tokens:
            numbers = _read(self.path / "added_tokens.json")
            tokens = [(index, {"content": token}) for token, index in numbers.items()]
        return sorted(tokens, key=operator.itemgetter(0))


class Made(NamedTuple):
    """A tokenizer.json's text, and the spelling of its special tokens by role."""

    definition: str
    tokens: dict[str, str]


def make_tokenizer(path: Path) -> Made | None:
    """Makes the tokenizer.json of a directory that has none.

    Returns:
      None where the directory lacks the files of its model, or the model is another.

    Raises:
      ConfigError: a file is damaged, or says what cannot be.
    """
    published = _read(path / "config.json")
    config = with_tokens_map(path, _read(path / "tokenizer_config.json"))
    kind = _kind_of(path, config, published)
    if kind is None:
        return None
    if kind.make is _plbart_tokens and len(_plbart_languages_of(config)) > len(PLBART["base"]):
        config["mask_token"] = None  # the vocabulary has none
    names = " and ".join(FILES.get(kind.make, ("the sentencepiece model",)))
    message = f"{path}: no tokenizer can be made of {names}"
    try:
        with library_errors(message):
            folder = Folder(path, config, kind)
            tokens = {}
            for role in ROLES:
                if folder.spelled(role):
                    tokens[role] = folder.spelled(role)
            return Made(_made(folder).to_str(), tokens)
    except ConfigError:
        raise
    except Exception as error:  # of damaged files
        raise ConfigError(f"{message} ({type(error).__name__}: {error}).") from None


def with_tokens_map(path: Path, config: Json) -> Json:
    """Returns tokenizer_config.json with special_tokens_map.json, which precedes it.

    As in transformers, a tokenizer_config.json with `added_tokens_decoder` is complete without it.
    """
    if "added_tokens_decoder" in config:
        return config
    return config | _read(path / "special_tokens_map.json")


def _made(folder: Folder) -> Tokenizer:
    made = folder.kind.make(folder)
    known = {token.content for token in made.get_added_tokens_decoder().values()}
    for token in folder.added:
        if token.content not in known:
            known.add(token.content)
            _add(made, token)
    _check_ids(made, folder)
    made.post_processor = _template(made, folder)
    return made


def _kind_of(path: Path, config: Json, published: Json) -> Kind | None:
    """Returns how a directory is tokenized, by its tokenizer's class or else its model."""
    named = config.get("tokenizer_class") or published.get("tokenizer_class")
    name = str(named).removesuffix("Fast").removesuffix("Tokenizer").lower()
    if not named:
        name = str(published.get("model_type", "")).replace("-", "").replace("_", "")
    name = NAMES.get(name, name)
    if name not in KINDS:
        return None
    kind = KINDS[name]
    needed = FILES.get(kind.make)
    if needed is None:
        is_there = bool(_files(path, MODELS))
    else:
        is_there = len(_files(path, needed)) == len(needed)
    return kind if is_there else None


def _word_pieces(folder: Folder) -> Tokenizer:
    lines = read_text(folder.path / "vocab.txt", limit=LARGEST).split("\n")
    tokens = lines[:-1] if lines[-1] == "" else lines
    vocab = {token.rstrip("\r"): index for index, token in enumerate(tokens)}
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


def _whole_words(folder: Folder) -> Tokenizer:
    """Makes ESM's: the longest token of the vocabulary at each place, and unknown text between."""
    lines = read_text(folder.path / "vocab.txt", limit=LARGEST).splitlines()
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


def _byte_pairs(folder: Folder, *, space: bool = False) -> Tokenizer:
    vocab = read_object(folder.path / "vocab.json")
    lines = read_text(folder.path / "merges.txt", limit=LARGEST).split("\n")
    merges = [_pair(line) for line in lines if line.strip() and not line.startswith("#version")]
    made = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    space = folder.flag("add_prefix_space", space)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    made.decoder = decoders.ByteLevel()
    return made


def _spaced_byte_pairs(folder: Folder) -> Tokenizer:
    """Makes Blenderbot's, which puts a space before a text."""
    return _byte_pairs(folder, space=True)


def _bytes(folder: Folder) -> Tokenizer:
    """Makes ByT5's: the bytes of UTF-8 after three special tokens, and 125 sentinels."""
    special = [folder.spelled(role) for role in ("pad", "eos", "unk")]
    vocab = {character: byte + len(special) for character, byte in BYTE_OF.items()}
    vocab |= {token: index for index, token in enumerate(special)}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _plain(folder: Folder) -> Iterable[Piece]:
    return _scored(folder.sentencepiece)


def _after_fairseq(*last: str) -> Callable[[Folder], list[Piece]]:
    """Returns the pieces in fairseq's order: four special tokens, the pieces, and others."""

    def pieces(folder: Folder) -> list[Piece]:
        first = [folder.spelled(role) for role in ("bos", "pad", "eos", "unk")]
        rest = list(_scored(folder.sentencepiece))[3:]
        ends = [*last, *([folder.spelled("mask")] if "mask" in folder.kind.tokens else [])]
        return [*_zeros(first), *rest, *_zeros(ends)]

    return pieces


def _camembert(folder: Folder) -> list[Piece]:
    first = ["<s>NOTUSED", folder.spelled("pad"), "</s>NOTUSED", folder.spelled("unk")]
    rest = list(_scored(folder.sentencepiece))[1:]
    return [*_zeros(first), ("<unk>NOTUSED", -100.0), *rest, *_zeros([folder.spelled("mask")])]


def _plbart_languages(folder: Folder) -> list[str]:
    return _plbart_languages_of(folder.config)


def _plbart_languages_of(config: Json) -> list[str]:
    codes = config.get("language_codes", "base")
    if codes not in PLBART:
        raise ConfigError(
            f"tokenizer_config.json: language_codes={brief(codes)}: must be {' or '.join(PLBART)}."
        )
    return [f"__{language}__" for language in PLBART[codes]]


def _plbart(folder: Folder) -> list[Piece]:
    """Returns the pieces of PLBART; only the three languages of `base` are followed by a mask."""
    ends = _plbart_languages(folder)
    if len(ends) == len(PLBART["base"]):
        ends.append(folder.spelled("mask"))
    first = [folder.spelled(role) for role in ("bos", "pad", "eos", "unk")]
    return [*_zeros(first), *list(_scored(folder.sentencepiece))[3:], *_zeros(ends)]


def _pegasus(folder: Folder) -> list[Piece]:
    first = [folder.spelled("pad"), folder.spelled("eos"), "<mask_1>", folder.spelled("mask")]
    unused = [(token, -100.0) for token in UNUSED]
    return [*_zeros(first), *unused, *list(_scored(folder.sentencepiece))[2:]]


def _unigram(
    pieces: Callable[[Folder], Iterable[Piece]],
    normalizer: Callable[[Folder, list[normalizers.Normalizer]], list[normalizers.Normalizer]],
    *,
    words: bool,
) -> Callable[[Folder], Tokenizer]:
    """Returns what makes a tokenizer of a sentencepiece model of unigrams.

    Args:
      pieces: returns the vocabulary by id.
      normalizer: returns the normalizers, given those of the file.
      words: whether spaces are split at, and left out, before pieces are.
    """

    def make(folder: Folder) -> Tokenizer:
        read = folder.sentencepiece
        if read.model != sentencepiece_file.UNIGRAM:
            raise ValueError("its sentencepiece model must be of unigrams")
        vocab = list(pieces(folder))
        names = [piece for piece, _ in vocab]
        made = Tokenizer(models.Unigram(vocab, names.index(folder.spelled("unk")), False))
        return _with_spaces(made, folder, normalizer, words=words)

    return make


def _merged(folder: Folder) -> Tokenizer:
    """Makes NLLB's, whose sentencepiece model is of byte pairs."""
    read = folder.sentencepiece
    if read.model != sentencepiece_file.BPE:
        raise ValueError("its sentencepiece model must be of byte pairs")
    if not _listed(folder.config):
        raise ConfigError(
            "special_tokens_map.json: additional_special_tokens must name the languages, whose ids"
            " follow the vocabulary."
        )
    names = [folder.spelled(role) for role in ("bos", "pad", "eos", "unk")]
    names += [piece for piece, _ in _scored(read) if piece not in names]
    vocab = {piece: index for index, piece in enumerate([*names, *_listed(folder.config)])}
    made = Tokenizer(
        models.BPE(vocab, list(_merges(names)), unk_token=folder.spelled("unk"), fuse_unk=True)
    )
    return _with_spaces(made, folder, _of_file, words=True)


def _merges(names: list[str]) -> list[tuple[str, str]]:
    """Returns the merges that make pieces of shorter ones, those of the first pieces first."""
    numbers = {piece: index for index, piece in enumerate(names)}
    ranked = []
    for piece, index in numbers.items():
        for at in range(1, len(piece)):
            left = piece[:at]
            right = piece[at:]
            if left in numbers and right in numbers:
                ranked.append((index, len(left), len(right), left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _with_spaces(
    made: Tokenizer,
    folder: Folder,
    normalizer: Callable[[Folder, list[normalizers.Normalizer]], list[normalizers.Normalizer]],
    *,
    words: bool,
) -> Tokenizer:
    of_file: list[normalizers.Normalizer] = []
    if folder.sentencepiece.charsmap:
        of_file.append(normalizers.Precompiled(folder.sentencepiece.charsmap))
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
    for piece, _, kind in folder.sentencepiece.pieces:
        if kind in (sentencepiece_file.CONTROL, sentencepiece_file.USER_DEFINED):
            special = kind == sentencepiece_file.CONTROL or piece in roles
            _add(made, AddedToken(piece, normalized=False, special=special))
    return made


def _add(made: Tokenizer, token: AddedToken) -> None:
    if token.special:
        made.add_special_tokens([token])
    else:
        made.add_tokens([token])


def _of_file(_: Folder, of_file: list[normalizers.Normalizer]) -> list[normalizers.Normalizer]:
    return of_file


def _no_steps(_: Folder, __: list[normalizers.Normalizer]) -> list[normalizers.Normalizer]:
    return []


def _one_space(_: Folder, of_file: list[normalizers.Normalizer]) -> list[normalizers.Normalizer]:
    return [*of_file, normalizers.Replace(Regex(" {2,}"), " ")]


def _pegasus_steps(
    _: Folder, of_file: list[normalizers.Normalizer]
) -> list[normalizers.Normalizer]:
    return [
        *(of_file or [normalizers.Replace(Regex(r"\n"), " ")]),
        normalizers.Replace(Regex(" {2,}"), " "),
    ]


def _big_bird_steps(_: Folder, __: list[normalizers.Normalizer]) -> list[normalizers.Normalizer]:
    return [normalizers.Replace(Regex(" {2,}"), SPACE)]


def _albert_steps(
    folder: Folder, of_file: list[normalizers.Normalizer]
) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not folder.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if folder.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return [*steps, *of_file]


def _deberta_steps(folder: Folder, _: list[normalizers.Normalizer]) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if folder.flag("do_lower_case", False):
        steps.append(normalizers.Lowercase())
    steps += [
        normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
        normalizers.NFC(),
        normalizers.Strip(left=False, right=True),
    ]
    return steps


def _template(made: Tokenizer, folder: Folder) -> Any:
    """Returns the post-processor that puts special tokens around texts."""
    kind = folder.kind
    language = folder.config.get("src_lang") or LANGUAGES.get(kind.make, "")
    if kind.make is _plbart_tokens:
        language = _plbart_language(folder)
    single, pair = kind.around
    if not language:
        single = single.removesuffix(" lang")
        pair = pair.removesuffix(" lang")
    if kind.make is _byte_pairs and single == "A":
        first = "bos " * bool(folder.flag("add_bos_token", False))
        last = " eos" * bool(folder.flag("add_eos_token", False))
        single = f"{first}A{last}"
        pair = f"{first}A{last} {first}B{last}"
    tokens = {role: folder.spelled(role) for role in ROLES} | {"lang": language}

    def spelled(template: str) -> list[str]:
        pieces = []
        number = 0
        for name in template.split():
            if name == "B" and kind.types:
                number = 1
            spelled_name = f"${name}" if name in "AB" else tokens[name]
            pieces.append(f"{spelled_name}:{number}")
        return pieces

    names = {tokens[name] for name in f"{single} {pair}".split() if name not in "AB"}
    for name in names:
        if made.token_to_id(name) is None:
            raise ConfigError(f"tokenizer_config.json: {name!r} is not in the vocabulary.")
    return processors.TemplateProcessing(
        single=spelled(single),
        pair=spelled(pair),
        special_tokens=[(name, made.token_to_id(name)) for name in sorted(names)],
    )


def _plbart_language(folder: Folder) -> str:
    """Returns the token of the source language; "" for none."""
    is_base = folder.config.get("language_codes", "base") == "base"
    language = folder.config.get("src_lang")
    if not language and not is_base:
        language = "en_XX"
    if language in PLBART["multi"]:
        return f"__{language}__"
    return language or ""


def _check_ids(made: Tokenizer, folder: Folder) -> None:
    for index, token in folder.numbered:
        name = _content(token)
        if name is not None and made.token_to_id(name) != index:
            raise ConfigError(
                f"{folder.path}: {name!r} is said to have the id {index}, and has"
                f" {made.token_to_id(name)}; is a file of another checkpoint?"
            )


def _listed(config: Json) -> list[str]:
    listed = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    if not isinstance(listed, list):
        return []
    return list(filter(None, map(_content, listed)))


def _added(token: Json, *, special: bool) -> AddedToken:
    flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word")}
    normalized = bool(token.get("normalized", not special))
    return AddedToken(_content(token) or "", special=special, normalized=normalized, **flags)


def _content(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _scored(read: SentencePieceFile) -> Iterator[Piece]:
    return ((piece, score) for piece, score, _ in read.pieces)


def _zeros(tokens: Iterable[str]) -> list[Piece]:
    return [(token, 0.0) for token in tokens]


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.rstrip("\r").partition(" ")
    return left, right


def _files(path: Path, names: tuple[str, ...]) -> list[Path]:
    return [path / name for name in names if (path / name).is_file()]


def _read(path: Path) -> Json:
    if not path.is_file():
        return {}
    return read_object(path)


MASK = {"mask": ("lstrip",)}
UNUSED = [f"<unk_{k}>" for k in range(2, 103)]
AROUND = ("cls A sep", "cls A sep B sep")
DOUBLED = ("cls A sep", "cls A sep sep B sep")
NO_MASK = {role: token for role, token in FAIRSEQ.items() if role != "mask"}
SENTENCES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}

_mbart = _unigram(_after_fairseq(*MBART), _no_steps, words=True)
_plbart_tokens = _unigram(_plbart, _of_file, words=True)
_mbart50 = _unigram(_after_fairseq(*MBART, *MBART50), _one_space, words=False)
KINDS = {
    "bert": Kind(_word_pieces, BERT, AROUND, types=True),
    "mpnet": Kind(_word_pieces, FAIRSEQ | {"unk": "[UNK]"}, DOUBLED, strips=MASK),
    "esm": Kind(_whole_words, PROTEIN, ("cls A eos", "cls A eos B eos")),
    "gpt2": Kind(_byte_pairs, dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")),
    "roberta": Kind(_byte_pairs, FAIRSEQ, DOUBLED),
    "blenderbot": Kind(_spaced_byte_pairs, FAIRSEQ, ("A", "A B"), strips=MASK),
    "deberta": Kind(_byte_pairs, BERT | {"bos": "[CLS]", "eos": "[SEP]"}, DOUBLED),
    "byt5": Kind(
        _bytes,
        SENTENCES,
        ("A eos", "A eos B eos"),
        strips=dict.fromkeys(SENTENCES, ("lstrip", "rstrip")),
        others=lambda _: [f"<extra_id_{k}>" for k in range(125)],
    ),
    "xlmroberta": Kind(_unigram(_after_fairseq(), _of_file, words=True), FAIRSEQ, DOUBLED),
    "camembert": Kind(_unigram(_camembert, _of_file, words=True), FAIRSEQ, DOUBLED, strips=MASK),
    "xglm": Kind(
        _unigram(_after_fairseq(*(f"<madeupword{k}>" for k in range(7))), _of_file, words=True),
        NO_MASK,
        ("eos A", "eos A eos eos B"),
    ),
    "mbart": Kind(
        _mbart, FAIRSEQ, ("A eos lang", "A B eos lang"), strips=MASK, others=lambda _: MBART
    ),
    "mbart50": Kind(
        _mbart50,
        FAIRSEQ,
        ("lang A eos", "lang A B eos"),
        strips=MASK,
        others=lambda _: (*MBART, *MBART50),
    ),
    "plbart": Kind(
        _plbart_tokens,
        FAIRSEQ,
        ("A eos lang", "A B eos lang"),
        strips=MASK,
        others=_plbart_languages,
    ),
    "nllb": Kind(_merged, FAIRSEQ, ("lang A eos", "lang A B eos"), strips=MASK),
    "albert": Kind(
        _unigram(_plain, _albert_steps, words=True),
        BERT | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"},
        AROUND,
        types=True,
    ),
    "debertav2": Kind(
        _unigram(_plain, _deberta_steps, words=False),
        BERT | {"bos": "[CLS]", "eos": "[SEP]"},
        AROUND,
        types=True,
    ),
    "pegasus": Kind(
        _unigram(_pegasus, _pegasus_steps, words=False),
        SENTENCES | {"mask": "<mask_2>"},
        ("A eos", "A B eos"),
        others=lambda _: ("<mask_1>", *UNUSED),
    ),
    "bigbird": Kind(
        _unigram(_plain, _big_bird_steps, words=False),
        BERT | {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
        AROUND,
        types=True,
        strips=MASK,
    ),
}
LANGUAGES = {_mbart: "en_XX", _mbart50: "en_XX", _merged: "eng_Latn"}
# Other tokenizer classes and model types that are tokenized alike.
NAMES = (
    dict.fromkeys(
        ("distilbert", "electra", "convbert", "mobilebert", "squeezebert", "retribert"), "bert"
    )
    | dict.fromkeys(("opt", "gptneo", "gptj", "codegen"), "gpt2")
    | dict.fromkeys(("bart", "longformer", "led", "robertaprelayernorm", "data2vectext"), "roberta")
    | {"xmod": "xlmroberta"}
)
# What each is made of; the others of one of MODELS.
FILES: dict[Callable[..., Tokenizer], tuple[str, ...]] = {
    _word_pieces: ("vocab.txt",),
    _whole_words: ("vocab.txt",),
    _byte_pairs: ("vocab.json", "merges.txt"),
    _spaced_byte_pairs: ("vocab.json", "merges.txt"),
    _bytes: (),
}
# All that is read of a directory.
READ = (
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    *MODELS,
)
