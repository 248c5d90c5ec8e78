"""Makes tests/fixtures/older_tokenizers: tiny vocabularies in the files that older checkpoints
have, and the ids that transformers' fast tokenizers give texts by them.

python tools/make_tokenizer_fixtures.py    # in an environment with transformers and sentencepiece
"""

import gzip
import io
import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
from transformers import AutoTokenizer

OUT = Path("tests/fixtures/older_tokenizers")
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle Fuchs springt über den faulen Hund, naïve Ångström.",
    "Быстрая лиса прыгает; 敏捷的狐狸跳过了懒狗。 الثعلب السريع",
    "तेज़ लोमड़ी कूदती है। 빠른 여우가",
    "  leading, two  spaces\tand\nlines \r\n trailing  ",
    "",
    " ",
    "\uff26\uff35\uff2c\uff2c ﬁne e\u0301 zero\u200bwidth \u00a0nbsp\u2003em",
    "😀 emoji 👩‍👧 \U0001d54f \ufffd",
    "price: 1,234.56 $ and 50%; don't DON'T ``quoted'' İstanbul",
    "[MASK] [CLS] <mask> </s> <pad><unk> a <mask> b [MASK] c",
    ">>fra<< Hello >>fra<< </s> again",
    "<extra_id_0> en_XX hello ▁under▁ <unk_2> <mask_1>(x)",
]
# on which none is trained
UNTRAINED = [
    "__en__ a__ja__ __start__B__null__ (it's,  ok?!)\n@@ x\x1fy __newln__",
    "MKTVRQERLKSIVR ILERSKEPVSGAQLA mkt <mask>L<null_1>-X.ZJ<cls>MK",
]
# From full width and a ligature to plain letters, plain spaces, and nothing for U+200B.
NORMALIZED = (
    "A0\t20\n2003\t20\n9\t20\nA\t20\nD\t20\n200B\t\nFF26\t46\nFF35\t55\nFF2C\t4C\nFB01\t66 69\n"
)
SENTENCEPIECE = {
    "plain.model": {},
    "pairs.model": {"model_type": "bpe"},
    "albert.model": {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "control_symbols": "[CLS],[SEP]",
        "user_defined_symbols": "[MASK],(",
    },
    "deberta.model": {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "unk_piece": "[UNK]",
    },
    "pegasus.model": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}
# ESM's vocabulary
PROTEIN = (
    "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
)
WORDS = {"words.txt": "vocab.txt"}
GPT2 = {"gpt2.json": "vocab.json", "gpt2.txt": "merges.txt"}
ROBERTA = {"roberta.json": "vocab.json", "roberta.txt": "merges.txt"}
PLAIN = {"plain.model": "sentencepiece.bpe.model"}
M2M100 = {"pairs.model": "sentencepiece.bpe.model", "m2m_100.json": "vocab.json"}
DEBERTA = {"deberta.model": "spm.model"}
# Name -> the files of a folder, its model_type, and its tokenizer_config.json if it has one.
FOLDERS = {
    "bert": (WORDS, "bert", None),
    "bert_cased": (WORDS, "bert", {"do_lower_case": False, "tokenize_chinese_chars": False}),
    "electra": (WORDS, "electra", {"tokenizer_class": "ElectraTokenizer", "strip_accents": False}),
    "mpnet": (WORDS, "mpnet", None),
    "esm": ({"protein.txt": "vocab.txt"}, "esm", {"tokenizer_class": "EsmTokenizer"}),
    "gpt2": (GPT2, "gpt2", None),
    "gpt_neo": (GPT2, "gpt_neo", {"add_prefix_space": True, "pad_token": "[PAD]"}),
    "opt": (
        ROBERTA,
        "opt",
        {
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "bos_token": {"__type": "AddedToken", "content": "</s>", "normalized": True},
            "eos_token": "</s>",
            "unk_token": "</s>",
            "pad_token": "<pad>",
        },
    ),
    "roberta": (ROBERTA, "roberta", None),
    "roberta_mask": (
        ROBERTA,
        "bart",
        {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}},
    ),
    "deberta": (ROBERTA, "deberta", None),
    "xlm_roberta": (PLAIN, "xlm-roberta", None),
    "camembert": (PLAIN, "camembert", None),
    "mbart": (PLAIN, "mbart", {"src_lang": "de_DE"}),
    "mbart50": (PLAIN, "mbart", {"tokenizer_class": "MBart50Tokenizer"}),
    "albert": ({"albert.model": "spiece.model"}, "albert", None),
    "albert_cased": (
        {"albert.model": "spiece.model"},
        "albert",
        {"do_lower_case": False, "keep_accents": True},
    ),
    "deberta_v2": (DEBERTA, "deberta-v2", None),
    "deberta_v2_lower": (DEBERTA, "deberta-v2", {"do_lower_case": True, "split_by_punct": True}),
    "pegasus": ({"pegasus.model": "spiece.model"}, "pegasus", None),
    "marian": (
        {"plain.model": "source.spm", "pegasus.model": "target.spm", "marian.json": "vocab.json"},
        "marian",
        {"source_lang": "en", "target_lang": "fr"},
    ),
    "byt5": ({}, "t5", {"tokenizer_class": "ByT5Tokenizer"}),
    "m2m_100": (M2M100, "m2m_100", {"tokenizer_class": "M2M100Tokenizer", "src_lang": "fr"}),
    "wmt21": (
        M2M100,
        "m2m_100",
        {
            "tokenizer_class": "M2M100Tokenizer",
            "language_codes": "wmt21",
            "additional_special_tokens": ["__en__", "__ha__", "__is__", "__ja__"],
        },
    ),
    "blenderbot": (ROBERTA, "blenderbot", None),
    "blenderbot_small": (
        {"small.json": "vocab.json", "small.txt": "merges.txt"},
        "blenderbot-small",
        None,
    ),
}


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rules.tsv").write_text(NORMALIZED)
        for name, options in SENTENCEPIECE.items():
            write_sentencepiece(name, Path(folder) / "rules.tsv", options)
    words = tokenizers.BertWordPieceTokenizer(lowercase=False)
    words.train_from_iterator(TEXTS * 9, vocab_size=250, show_progress=False)
    write_vocabulary(words, "words.txt")
    for name, special in (
        ("gpt2", ["<|endoftext|>"]),
        ("roberta", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    ):
        pairs = tokenizers.ByteLevelBPETokenizer()
        pairs.train_from_iterator(TEXTS * 9, 320, special_tokens=special, show_progress=False)
        write_vocabulary(pairs, f"{name}.json", f"{name}.txt")
    (OUT / "protein.txt").write_text("\n".join(PROTEIN.split()))
    write_marian("plain.model", "pegasus.model")
    write_m2m_100("pairs.model")
    write_blenderbot_small()
    expected = {name: ids_of(*folder) for name, folder in FOLDERS.items()}
    content = {"texts": [*TEXTS, *UNTRAINED], "folders": expected}
    (OUT / "expected.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def write_sentencepiece(name: str, rules: Path, options: dict) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        character_coverage=0.98,
        normalization_rule_tsv=str(rules),
        minloglevel=2,
        **options,
    )
    (OUT / name).write_bytes(model.getvalue())


def write_marian(*models: str) -> None:
    """Writes the ids of the pieces of two sentencepiece models, and of a language."""
    names = ["</s>", "<unk>", ">>fra<<"]
    for model in models:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(OUT / model))
        names += [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    ids = {name: i for i, name in enumerate(dict.fromkeys([*names, "<pad>"]))}
    (OUT / "marian.json").write_text(json.dumps(ids))


def write_m2m_100(model: str) -> None:
    """Writes the ids of most pieces of a sentencepiece model; a 17th of them has none."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(OUT / model))
    numbered = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()) if i % 17]
    names = ["<s>", "<pad>", "</s>", "<unk>", *numbered]
    (OUT / "m2m_100.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))


def write_blenderbot_small() -> None:
    """Writes merges of the letters of words, of which the last is marked, and their pieces."""
    words = sorted({word.lower() for text in TEXTS for word in text.split()})
    trained = tokenizers.Tokenizer(tokenizers.models.BPE(end_of_word_suffix="</w>"))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200, show_progress=False, end_of_word_suffix="</w>"
    )
    trained.train_from_iterator(words * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    names = ["__null__", "__start__", "__end__", "__unk__", "__newln__"]
    for piece in model["vocab"]:
        names.append(piece.removesuffix("</w>") if piece.endswith("</w>") else f"{piece}@@")
    ids = {name: i for i, name in enumerate(dict.fromkeys(names))}
    (OUT / "small.json").write_text(json.dumps(ids))
    merges = [" ".join(pair) for pair in model["merges"]]
    (OUT / "small.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))


def write_vocabulary(trained: object, *names: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, name in zip(sorted(trained.save_model(folder), reverse=True), names, strict=True):
            shutil.copy(path, OUT / name)


def ids_of(files: dict[str, str], model_type: str, config: dict | None) -> dict:
    """Returns the files of a folder, and what transformers makes of them."""
    written = {"config.json": {"model_type": model_type}}
    if config is not None:
        written["tokenizer_config.json"] = config
    with tempfile.TemporaryDirectory() as folder:
        for source, name in files.items():
            shutil.copy(OUT / source, Path(folder) / name)
        for name, content in written.items():
            (Path(folder) / name).write_text(json.dumps(content))
        theirs = AutoTokenizer.from_pretrained(folder)
    ids = [theirs(text)["input_ids"] for text in [*TEXTS, *UNTRAINED]]
    bare = [theirs(text, add_special_tokens=False)["input_ids"] for text in [*TEXTS, *UNTRAINED]]
    pair = theirs(TEXTS[0], UNTRAINED[-1])
    roles = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    tokens = {role: getattr(theirs, f"{role}_token_id", None) for role in roles}
    return {
        "files": files,
        "written": written,
        "ids": ids,
        "texts": [theirs.decode(row, skip_special_tokens=True) for row in bare],
        "pair": [pair["input_ids"], pair.get("token_type_ids")],
        "tokens": {role: index for role, index in tokens.items() if index is not None},
    }


if __name__ == "__main__":
    main()
