"""Applies what transformers' classes of tokenizers do to a tokenizer.json.

The generic class takes the file as it is; others build the first steps, and the special tokens
around texts, again from the fields of tokenizer_config.json. Here they are changed where the fields
say so, and are the file's otherwise.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer

from flaxformer_lite.files.read import Json

GENERIC = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
# Models whose tokenizer is of the generic class, whatever class their files name.
GENERIC_MODELS = {
    *("ernie4_5", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "granite", "granitemoehybrid"),
    *("hyperclovax", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "modernbert"),
    *("modernbert-decoder", "nystromformer", "olmo2", "olmo3", "phi3", "stablelm", "umt5"),
    "xlm-roberta-xl",
}
BERT = (
    *("Bert", "DistilBert", "Electra", "Funnel", "LayoutLM", "Lxmert", "MPNet", "MobileBert"),
    *("Splinter", "SqueezeBert"),
)
UNIGRAM = ("Albert", "DebertaV2", "RemBert", "XLNet")
# Classes whose texts begin with cls and end with sep, and with bos and eos.
FRAMED = {
    "cls": (*BERT, *UNIGRAM, "Bart", "BigBird", "Deberta", "LED", "Longformer", "Roberta"),
    "bos": ("Camembert", "XLMRoberta"),
}
# The usual spelling of both, in a file that was made before its folder named others.
FIRST = ("[CLS]", "<s>", "<cls>")
LAST = ("[SEP]", "</s>", "<sep>")
# Fields of the classes like BERT, and of the normalizer's options.
OPTIONS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "clean_text": "clean_text",  # which Funnel's class alone reads
}
USUAL = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True, "clean_text": True}


def name_class(config: Json, published: Json) -> str:
    """Names the class that makes a folder's tokenizer, such as `Bert`; "" for the generic one.

    Args:
      config: of tokenizer_config.json.
      published: of config.json; its model_type names the class where no file does.
    """
    if published.get("model_type") in GENERIC_MODELS:
        return ""
    named = config.get("tokenizer_class") or published.get("tokenizer_class")
    if named:
        return "" if named in GENERIC else named.removesuffix("Fast").removesuffix("Tokenizer")
    kind = str(published.get("model_type", "")).replace("-", "").replace("_", "")
    names = {name.lower(): name for names in FRAMED.values() for name in names}
    return names.get(kind, "")


def follow_fields(definition: str, name: str, fields: Mapping[str, bool | None]) -> str:
    """Returns a tokenizer.json whose first steps are as the fields say; else unchanged.

    Args:
      definition: the text of a tokenizer.json.
      name: of the class.
      fields: those of tokenizer_config.json that the folder says.
    """
    values = json.loads(definition)
    parts = ("normalizer", "pre_tokenizer")
    before = json.dumps([values.get(part) for part in parts])
    if "add_prefix_space" in fields:
        _put_prefix_space(values, bool(fields["add_prefix_space"]))
    if name in BERT:
        _set_options(values, name, fields)
    if name in UNIGRAM:
        _set_steps(values, name, fields)
    if json.dumps([values.get(part) for part in parts]) == before:
        return definition  # as it was, as tokenizers are told apart by its hash
    return json.dumps(values, ensure_ascii=False)


def rename_frame(definition: str, name: str, tokens: Mapping[str, str]) -> str:
    """Returns a tokenizer.json that puts the named tokens around texts; else unchanged.

    Args:
      definition: the text of a tokenizer.json with these tokens in its vocabulary.
      name: of the class.
      tokens: the spelling of special tokens by role, as the folder names them.
    """
    renamed: dict[str, str] = {}
    for first, names in FRAMED.items():
        last = {"cls": "sep", "bos": "eos"}[first]
        if name in names:
            renamed |= {usual: tokens[first] for usual in FIRST if first in tokens}
            renamed |= {usual: tokens[last] for usual in LAST if last in tokens}
    if not renamed:
        return definition
    values = json.loads(definition)
    used = {token for token in _framing(values.get("post_processor")) if token in renamed}
    if all(renamed[token] == token for token in used):
        return definition
    library = Tokenizer.from_str(definition)
    numbers = {token: library.token_to_id(renamed[token]) for token in used}

    def rename(value: object) -> object:
        """Renames within `[token, id]`, and within a template and its table of ids."""
        if isinstance(value, list):
            if len(value) == 2 and value[0] in used and isinstance(value[1], int):
                return [renamed[value[0]], numbers[value[0]]]
            return [rename(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("id") in used and "tokens" in value:
            token = value["id"]
            return {"id": renamed[token], "ids": [numbers[token]], "tokens": [renamed[token]]}
        made = {}
        for key, item in value.items():
            if key == "id" and item in used:
                item = renamed[item]
            made[renamed[key] if key in used else key] = rename(item)
        return made

    values["post_processor"] = rename(values["post_processor"])
    return json.dumps(values, ensure_ascii=False)


def _framing(value: object) -> Iterator[str]:
    """Yields all texts within a post-processor, special tokens among them."""
    if isinstance(value, str):
        yield value
    items: Iterable[object] = ()
    if isinstance(value, dict):
        items = value.values()
    if isinstance(value, list):
        items = value
    for item in items:
        yield from _framing(item)


def _set_options(values: Json, name: str, fields: Mapping[str, bool | None]) -> None:
    """Sets the options of BERT's normalizer, or puts one in the place of another."""
    said = {option: fields[field] for field, option in OPTIONS.items() if field in fields}
    if name != "Funnel":
        said.pop("clean_text", None)
    if not said:
        return
    for step in _steps(values.get("normalizer"), "normalizers"):
        if step["type"] == "BertNormalizer":
            step.update(said)
            return
    values["normalizer"] = {"type": "BertNormalizer", **USUAL, **said}


def _set_steps(values: Json, name: str, fields: Mapping[str, bool | None]) -> None:
    """Adds or takes away the steps that lower letters, take their accents, and split at marks."""
    steps = list(_steps(values.get("normalizer"), "normalizers"))
    wanted = {}
    if "do_lower_case" in fields:
        wanted["Lowercase"] = fields["do_lower_case"]
    if "keep_accents" in fields and name not in ("DebertaV2", "XLNet"):
        wanted |= dict.fromkeys(("NFKD", "StripAccents"), not fields["keep_accents"])
    kinds = {step["type"] for step in steps}
    if any(is_wanted != (kind in kinds) for kind, is_wanted in wanted.items()):
        kept = [step for step in steps if step["type"] not in wanted]
        at = 0
        if name != "DebertaV2":
            at = next((i for i, s in enumerate(kept) if s["type"] == "Precompiled"), len(kept))
        order = [kind for kind in ("NFKD", "StripAccents", "Lowercase") if wanted.get(kind)]
        kept[at:at] = [{"type": kind} for kind in order]
        values["normalizer"] = {"type": "Sequence", "normalizers": kept}
    if name == "DebertaV2" and "split_by_punct" in fields:
        steps = list(_steps(values.get("pre_tokenizer"), "pretokenizers"))
        kept = [step for step in steps if step["type"] != "Punctuation"]
        if fields["split_by_punct"]:
            kept.insert(0, {"type": "Punctuation", "behavior": "Isolated"})
        if kept != steps:
            values["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": kept}


def _put_prefix_space(values: Json, prefix_space: bool) -> None:
    """Has the first step put a space before texts, or none."""
    for step in _steps(values.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "ByteLevel":
            step["add_prefix_space"] = prefix_space
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "first" if prefix_space else "never"


def _steps(first: Json | None, inside: str) -> Iterator[Json]:
    """Yields the steps of a part, which may be a sequence of them."""
    if first is None:
        return
    if first["type"] != "Sequence":
        yield first
        return
    for step in first[inside]:
        yield from _steps(step, inside)
