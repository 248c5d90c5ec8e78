"""Publishing a training run's tokenizer, with the ids that texts begin and end with."""

import json
from pathlib import Path

import flax.linen as nn
import tokenizers
from tokenizers import processors

from flaxformer_lite.files.read import Json
from flaxformer_lite.text import conversations, older_files, saved_files, tokenizer as plain


def publish_tokenizer(
    inner: plain.Tokenizer,
    model: nn.Module,
    made: Path,
    template: str = "",
    limit: int | None = None,
) -> Json:
    """Writes a tokenizer with the special tokens of training; returns its fields for config.json.

    Without these ids in config.json, transformers assumes the family's usual ones. With a chat
    template, what it ends turns with also ends texts. With a limit, texts are cut at that many
    tokens by default.
    """
    generation: Json = {}
    for role in ("pad", "bos", "eos"):
        if role in inner.ids:
            generation[f"{role}_token_id"] = inner.ids[role]
    if model.skeleton == "encoder_decoder":
        start = model.cfg.decoder_start_token_id
        if start is None:
            start = inner.pad_id
        generation["decoder_start_token_id"] = start
    ends = [inner.eos_id]
    if template:
        (made / "chat_template.jinja").write_text(template, encoding="utf-8")
        end = conversations.find_end_of_turn(inner, template)
        if end is not None and end != inner.eos_id:
            ends = sorted([inner.eos_id, end])
    if model.skeleton != "encoder":
        written = dict(generation)
        if len(ends) > 1:
            written["eos_token_id"] = ends
        _write_json(made / "generation_config.json", written)
    if inner.file == saved_files.SENTENCEPIECE:
        inner = _express_pieces(inner)
    inner.save(made)
    if inner.file == saved_files.JSON:
        _publish_json(inner, model, made, limit)
    generation.pop("pad_token_id", None)  # would change a model's numbers
    if model.skeleton == "encoder":
        return {}
    return generation


def _express_pieces(inner: plain.Tokenizer) -> plain.HuggingFace:
    """Returns a sentencepiece model as a tokenizer.json.

    transformers takes the model's own file by the steps of a family's class, which may be others.
    """
    definition = older_files.express_pieces(inner.definition)
    known = tokenizers.Tokenizer.from_str(definition)
    names = {role: str(known.id_to_token(index)) for role, index in inner.ids.items()}
    return plain.HuggingFace(definition.encode(), names)


def _publish_json(inner: plain.Tokenizer, model: nn.Module, made: Path, limit: int | None) -> None:
    known = tokenizers.Tokenizer.from_str(inner.definition.decode())
    around = plain.usual_frame(inner, model.skeleton)
    if known.post_processor is None and (around.before or around.after):
        before = [known.id_to_token(i) for i in around.before]
        after = [known.id_to_token(i) for i in around.after]
        single = [*before, "$A", *after]
        pair = [*single, "$B:1", *(f"{token}:1" for token in after)]
        specials = [(known.id_to_token(i), i) for i in {*around.before, *around.after}]
        known.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=specials
        )
        read = json.loads(known.to_str())
        for token in read["added_tokens"]:
            # takes the space before it, like RoBERTa's <mask>
            token["lstrip"] |= token["content"] == "[MASK]"
        _write_json(made / inner.file, read)
    config: Json = {f"{role}_token": known.id_to_token(i) for role, i in inner.ids.items()}
    # The class that needs tokenizer.json only, and no file of a family.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if model.cfg.has_position_table:
        config["model_max_length"] = model.cfg.max_length
    if limit is not None:
        config["model_max_length"] = limit
    names = ["input_ids", "attention_mask"]
    if inner.frame(model.skeleton).second_type and model.cfg.type_vocab_size > 1:
        names.insert(1, "token_type_ids")
    config["model_input_names"] = names  # else transformers leaves the types out
    _write_json(made / "tokenizer_config.json", config)


def _write_json(path: Path, values: Json) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
