"""Tokenizers of checkpoints that are older than tokenizer.json, made of the files that they have.

    vocab.txt                    BERT, DistilBERT, ELECTRA, MPNet, ESM
    vocab.json and merges.txt    GPT-2, OPT, RoBERTa, BART, DeBERTa
    a sentencepiece model        ALBERT, XLM-R, CamemBERT, DeBERTa-v2, mBART, NLLB, PLBART, Pegasus,
                                 BigBird
    the same                     Llama, Gemma, T5, and others by the model's own steps
    none                         ByT5

What is made is what transformers makes of the same files: a model of the `tokenizers` library, a
normalizer, a pre-tokenizer, and the special tokens around texts.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.older_tokenizers.folder import (
    MODELS,
    Folder,
    Kind,
    existing_files,
)
from flaxformer_lite.contrib.older_tokenizers.models import (
    UNUSED,
    add_token,
    albert_steps,
    big_bird_steps,
    byte_pairs,
    byte_tokens,
    camembert_pieces,
    deberta_steps,
    fairseq_pieces,
    nllb,
    no_steps,
    of_file_steps,
    one_space_steps,
    pegasus_pieces,
    pegasus_steps,
    plain_pieces,
    spaced_byte_pairs,
    unigram,
    whole_words,
    word_pieces,
)
from flaxformer_lite.contrib.older_tokenizers.sentence_pieces import (
    code_llama_pairs,
    gemma_pairs,
    llama_pairs,
    pieces_of_model,
    t5_unigrams,
)
from flaxformer_lite.files.read import Json, quote_value
from flaxformer_lite.text.added_tokens import (
    ROLES,
    content_of,
    listed_tokens,
    read_optional,
    tell_other_ids,
)
from flaxformer_lite.text.escape_specials import library_errors
from flaxformer_lite.text.folder_rules import with_tokens_map
from flaxformer_lite.text.older_files import Made
from flaxformer_lite.text.tokenizer_classes import GENERIC, GENERIC_MODELS

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
NO_MASK = {role: token for role, token in FAIRSEQ.items() if role != "mask"}
ENDS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
INFILL = ("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>", "<FILL_ME>")
GEMMA = {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
SENTENCES = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
MASK = {"mask": ("lstrip",)}
AROUND = ("cls A sep", "cls A sep B sep")
DOUBLED = ("cls A sep", "cls A sep sep B sep")
MBART = re.findall(
    r"\w+",
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT"
    " lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN",
)
MBART50 = MBART + re.findall(
    r"\w+",
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF"
    " pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI",
)
PLBART = ("__java__", "__python__", "__en_XX__")
PLBART_MULTI = (*PLBART, "__javascript__", "__php__", "__ruby__", "__go__")
KINDS = {
    "bert": Kind(word_pieces, BERT, AROUND, types=True),
    "mpnet": Kind(word_pieces, FAIRSEQ | {"unk": "[UNK]"}, DOUBLED, strips=MASK),
    "esm": Kind(whole_words, PROTEIN, ("cls A eos", "cls A eos B eos")),
    "gpt2": Kind(byte_pairs, dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")),
    "roberta": Kind(byte_pairs, FAIRSEQ, DOUBLED),
    "blenderbot": Kind(spaced_byte_pairs, FAIRSEQ, ("A", "A B"), strips=MASK),
    "deberta": Kind(byte_pairs, BERT | {"bos": "[CLS]", "eos": "[SEP]"}, DOUBLED),
    "byt5": Kind(
        byte_tokens,
        SENTENCES,
        ("A eos", "A eos B eos"),
        strips=dict.fromkeys(SENTENCES, ("lstrip", "rstrip")),
        others=tuple(f"<extra_id_{k}>" for k in range(125)),
    ),
    "xlmroberta": Kind(unigram(fairseq_pieces(), of_file_steps, words=True), FAIRSEQ, DOUBLED),
    "camembert": Kind(
        unigram(camembert_pieces, of_file_steps, words=True), FAIRSEQ, DOUBLED, strips=MASK
    ),
    "xglm": Kind(
        unigram(fairseq_pieces(*(f"<madeupword{k}>" for k in range(7))), of_file_steps, words=True),
        NO_MASK,
        ("eos A", "eos A eos eos B"),
    ),
    "mbart": Kind(
        unigram(fairseq_pieces(*MBART), no_steps, words=True),
        FAIRSEQ,
        ("A eos lang", "A B eos lang"),
        strips=MASK,
        others=MBART,
        language="en_XX",
    ),
    "mbart50": Kind(
        unigram(fairseq_pieces(*MBART50), one_space_steps, words=False),
        FAIRSEQ,
        ("lang A eos", "lang A B eos"),
        strips=MASK,
        others=MBART50,
        language="en_XX",
    ),
    "plbart base": Kind(
        unigram(fairseq_pieces(*PLBART), of_file_steps, words=True),
        FAIRSEQ,
        ("A eos lang", "A B eos lang"),
        strips=MASK,
        others=PLBART,
    ),
    "plbart multi": Kind(  # whose vocabulary has no mask
        unigram(fairseq_pieces(*PLBART_MULTI), of_file_steps, words=True),
        NO_MASK,
        ("A eos lang", "A B eos lang"),
        others=PLBART_MULTI,
        language="en_XX",
    ),
    "nllb": Kind(nllb, FAIRSEQ, ("lang A eos", "lang A B eos"), strips=MASK, language="eng_Latn"),
    "albert": Kind(
        unigram(plain_pieces, albert_steps, words=True),
        BERT | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"},
        AROUND,
        types=True,
    ),
    "debertav2": Kind(
        unigram(plain_pieces, deberta_steps, words=False),
        BERT | {"bos": "[CLS]", "eos": "[SEP]"},
        AROUND,
        types=True,
    ),
    "pegasus": Kind(
        unigram(pegasus_pieces, pegasus_steps, words=False),
        SENTENCES | {"mask": "<mask_2>"},
        ("A eos", "A B eos"),
        others=("<mask_1>", *UNUSED),
    ),
    "bigbird": Kind(
        unigram(plain_pieces, big_bird_steps, words=False),
        BERT | {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
        AROUND,
        types=True,
        strips=MASK,
    ),
    "llama": Kind(llama_pairs, ENDS),
    "codellama": Kind(code_llama_pairs, ENDS, ("bos A", "bos A bos B"), others=INFILL),
    "gemma": Kind(gemma_pairs, GEMMA, of_model=True),
    "t5": Kind(t5_unigrams, SENTENCES, ("A eos", "A eos B eos"), of_model=True),
    "pieces": Kind(pieces_of_model, ENDS, of_model=True, raw=True),
}
# Other tokenizer classes and model types that are tokenized alike.
NAMES = (
    dict.fromkeys(
        ("distilbert", "electra", "convbert", "mobilebert", "squeezebert", "retribert"), "bert"
    )
    | dict.fromkeys(("opt", "gptneo", "gptj", "codegen"), "gpt2")
    | dict.fromkeys(("bart", "longformer", "led", "robertaprelayernorm", "data2vectext"), "roberta")
    | {"xmod": "xlmroberta"}
    | dict.fromkeys(("gemma2", "gemma3text", "t5gemma"), "gemma")
    | dict.fromkeys(("mt5", "umt5", "longt5", "switchtransformers", "t5decoder"), "t5")
)
PIECES = "tokenizer.model"  # the file that transformers reads for a model without a class
# Kinds of which `add_bos_token` and `add_eos_token` say what is around texts.
BARE = (byte_pairs, llama_pairs, gemma_pairs, pieces_of_model)
# What each is made of; the others of one of MODELS.
FILES: dict[Callable[..., Tokenizer], tuple[str, ...]] = {
    word_pieces: ("vocab.txt",),
    whole_words: ("vocab.txt",),
    byte_pairs: ("vocab.json", "merges.txt"),
    spaced_byte_pairs: ("vocab.json", "merges.txt"),
    byte_tokens: (),
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


def make_tokenizer(path: Path) -> Made | None:
    """Makes the tokenizer.json of a directory that has none.

    Returns:
      None where the directory lacks the files of its model, or the model is another.

    Raises:
      ConfigError: a file is damaged, or says what cannot be.
    """
    published = read_optional(path / "config.json")
    config = with_tokens_map(path, read_optional(path / "tokenizer_config.json"))
    kind = _kind_of(path, config, published)
    if kind is None:
        return None
    if kind is KINDS["plbart multi"]:
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


def _made(folder: Folder) -> Tokenizer:
    made = folder.kind.make(folder)
    known = {token.content for token in made.get_added_tokens_decoder().values()}
    listed = {content_of(token) for token in listed_tokens(folder.config)}
    for token, _, replaces in folder.added:
        # a list of tokens stands in the place of the class's own
        is_left_out = token.content in folder.kind.others and token.content not in listed
        if listed and is_left_out and made.token_to_id(token.content) is None:
            continue
        if replaces or token.content not in known:
            known.add(token.content)
            add_token(made, token)
    if folder.kind.make in (whole_words, byte_tokens):
        _check_ids(made, folder)
    tell_other_ids(made, folder.added, folder.path)
    made.post_processor = _template(made, folder)
    return made


def _kind_of(path: Path, config: Json, published: Json) -> Kind | None:
    """Returns how a directory is tokenized, by its tokenizer's class or else its model."""
    named = config.get("tokenizer_class") or published.get("tokenizer_class")
    model = str(published.get("model_type", ""))
    is_generic = named in GENERIC or model in GENERIC_MODELS
    if not named and model == "llama":  # whose models have several classes
        is_generic = True
    name = str(named).removesuffix("Fast").removesuffix("Tokenizer").lower()
    if not named:
        name = model.replace("-", "").replace("_", "")
    name = NAMES.get(name, name)
    has_pieces = (path / PIECES).is_file() and bool(name)
    if has_pieces and (is_generic or name not in {*KINDS, "plbart"}):
        return KINDS["pieces"]
    if name == "plbart":
        name = f"plbart {_plbart_languages(config)}"
    if name not in KINDS:
        return None
    kind = KINDS[name]
    needed = FILES.get(kind.make)
    if needed is None:
        is_there = bool(existing_files(path, MODELS))
    else:
        is_there = len(existing_files(path, needed)) == len(needed)
    return kind if is_there else None


def _template(made: Tokenizer, folder: Folder) -> Any:
    """Returns the post-processor that puts special tokens around texts."""
    kind = folder.kind
    language = folder.config.get("src_lang") or kind.language
    if f"__{language}__" in kind.others:
        language = f"__{language}__"
    single, pair = kind.around
    if not language:
        single = single.removesuffix(" lang")
        pair = pair.removesuffix(" lang")
    if kind.make in BARE and single == "A":
        other = "B"
        if folder.flag("add_bos_token", False):
            single = f"bos {single}"
            other = f"bos {other}"
        if folder.flag("add_eos_token", False):
            single = f"{single} eos"
            other = f"{other} eos"
        pair = f"{single} {other}"
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


def _plbart_languages(config: Json) -> str:
    """Returns which languages PLBART's vocabulary has, base or multi."""
    codes = config.get("language_codes", "base")
    if codes not in ("base", "multi"):
        raise ConfigError(
            f"tokenizer_config.json: language_codes={quote_value(codes)}: must be base or multi."
        )
    return codes


def _check_ids(made: Tokenizer, folder: Folder) -> None:
    """Refuses ids that transformers gives, by a class without the library, and we cannot."""
    for token, index, _ in folder.added:
        known = made.token_to_id(token.content)
        if index is not None and known != index:
            raise ConfigError(
                f"{folder.path}: {token.content!r} is said to have the id {index}, and has {known};"
                " is a file of another checkpoint?"
            )
