"""Conversion between config.json and ModelConfig, by the tables of a family file."""

import logging
import operator
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig, choices, plugin_name
from flaxformer_lite.config.architecture import WEIGHTLESS_FIELDS
from flaxformer_lite.config.parts import FeedForwardConfig
from flaxformer_lite.files.read import Json, quote_name, quote_value
from flaxformer_lite.models.fields import ACTIVATION_NAMES, Fields, activation_of, repeat_pattern
from flaxformer_lite.models.weight_map import Head
from flaxformer_lite.pretrained.harmless_fields import HARMLESS
from flaxformer_lite.pretrained.known_fields import KNOWN, RATES

LOG = logging.getLogger("flaxformer_lite")

# Fields of the task that config.json has all the same.
PUBLISHED_IDS = {"pad_token_id", "eos_token_id", "decoder_start_token_id"}
# Fields without a counterpart in config.json, which may differ when it is read back. Families that
# limit max_length do have one for it.
OURS_ONLY = {*WEIGHTLESS_FIELDS, "family", "max_length", "sharding", "adapter"} - PUBLISHED_IDS
# transformers' names of the rates of dropout in our slots; a slot without one has the first rate
MAIN_DROPOUT = (
    "hidden_dropout_prob",
    "hidden_dropout",
    "resid_pdrop",
    "resid_dropout",
    "residual_dropout",
    "dropout",
    "dropout_rate",
)
DROPOUT = {
    "embed": ("embd_pdrop", "embed_dropout", "embedding_dropout"),
    "attention": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
    "mlp": ("activation_dropout", "mlp_dropout"),
}


def _at_inference(part: ModelConfig | LayerKind) -> FeedForwardConfig | None:
    if part.feed_forward is None:
        return None
    return part.feed_forward.at_inference


def _every_layer(cfg: ModelConfig) -> list[LayerKind]:
    kinds = []
    for kind in cfg.kinds:
        window = kind.window or 0
        kinds.append(
            replace(
                kind,
                window=window,
                position=kind.position or cfg.position,
                feed_forward=_at_inference(kind),
            )
        )
    return repeat_pattern(kinds, cfg.encoder_layers + cfg.decoder_layers)


MAY_BE_ZERO = ("type_vocab_size", "eos_token_id", "decoder_start_token_id")
KINDS = typing.get_type_hints(ModelConfig) | dict.fromkeys(MAY_BE_ZERO, int)
# Functions that normalize fields with two spellings of the same value.
MEANING = {
    "embedding_size": lambda cfg: cfg.embedding_width,
    "head_dim": lambda cfg: cfg.head_width,
    "num_kv_heads": lambda cfg: cfg.kv_heads,
    "attention_scale": lambda cfg: cfg.scale,
    "norm_at": lambda cfg: set(cfg.norm_at),
    "bias_at": lambda cfg: set(cfg.bias_at),
    "feed_forward": _at_inference,
    "windows": _every_layer,
    "pattern": _every_layer,
    "decoder_num_heads": lambda cfg: cfg.of_decoder.num_heads,
    "decoder_vocab_size": lambda cfg: (cfg.has_decoder_table, cfg.of_decoder.vocab_size),
    "decoder_table": lambda cfg: cfg.has_decoder_table,
    "decoder_mlp_dim": lambda cfg: cfg.of_decoder.mlp_dim,
    "decoder_d_model": lambda cfg: cfg.of_decoder.d_model,
    "decoder_num_kv_heads": lambda cfg: cfg.of_decoder.kv_heads,
    "decoder_head_dim": lambda cfg: cfg.of_decoder.head_width,
    "decoder_windows": lambda cfg: _every_layer(cfg.of_decoder),
    "decoder_pattern": lambda cfg: _every_layer(cfg.of_decoder),
    "decoder_start_token_id": lambda cfg: (
        cfg.pad_token_id if cfg.decoder_start_token_id is None else cfg.decoder_start_token_id
    ),
}


def family_of(published: Json, folder: Path, family: str | None = None) -> ModuleType:
    """Imports the family file of a model_type, or the family that `family` names.

    The file has the name of the model_type, with _ for -.

    Raises:
      ConfigError: there is none, or `family` has another model_type.
    """
    if family is not None:
        return _chosen(family, published, folder)
    name = str(published.get("model_type", "")).replace("-", "_")
    if name in registry.available("models"):
        family_file = registry.resolve("models", name)
        if hasattr(family_file, "PUBLISHED"):
            relative = family_file.PUBLISHED.relatives.get(_architecture(published))
            if not relative:
                return family_file
            return registry.resolve("models", relative)
    known = _published_families()
    near = registry.did_you_mean(name, known)
    raise ConfigError(
        f"{folder}/config.json: model_type={quote_value(published.get('model_type'))}{near}; the"
        f" families with published weights are {', '.join(known)}; family=module:Model reads by"
        " your own."
    )


def _published_families() -> list[str]:
    """Lists the families that have published weights; imports all of them to find out."""
    names = registry.available("models")
    return [name for name in names if hasattr(registry.resolve("models", name), "PUBLISHED")]


def _chosen(family: str, published: Json, folder: Path) -> ModuleType:
    try:
        chosen = registry.resolve("models", family)
    except ValueError as error:
        raise ConfigError(f"family={family!r}: {error}") from None
    if not hasattr(chosen, "PUBLISHED") or not hasattr(chosen, "config"):
        raise ConfigError(
            f"family={family!r}: its file needs PUBLISHED and config to read published weights."
        )
    named = published.get("model_type")
    known = chosen.PUBLISHED.model_type
    if named != known:
        raise ConfigError(
            f"{folder}/config.json: model_type={quote_value(named)}, where family={family!r} reads"
            f" {known!r}; leave family out, or name another."
        )
    return chosen


def head_of(family: ModuleType, published: Json, head: str | None) -> str:
    """Returns the requested head, or the one that `architectures` names."""
    heads = family.PUBLISHED.heads
    if head is not None:
        if head not in heads:
            near = registry.did_you_mean(head, list(heads))
            raise ConfigError(
                f"head={head!r}: no such head{near}; {_name(family)} has {', '.join(heads)}."
            )
        return head
    architecture = _architecture(published)
    for name, spelled in heads.items():
        if spelled.architecture == architecture:
            return name
    raise ConfigError(
        f"config.json: architectures[0]={quote_value(architecture)} is unknown; pass"
        f" head={'|'.join(heads)}."
    )


def _architecture(published: Json) -> str:
    """Returns the transformers class that config.json names first; "None" if it names none."""
    named = published.get("architectures") or [None]
    first = named[0] if isinstance(named, list) else named
    if isinstance(first, str):
        return first
    return quote_value(first)


def open_config(
    published: Json, folder: Path, head: str | None, family: str | None, **overrides: object
) -> tuple[ModuleType, ModelConfig]:
    """Returns the family file of a published config, and the ModelConfig.

    Raises:
      ConfigError, WeightsError: as `family_of` and `read_config`.
    """
    plugin = family_of(published, folder, family)
    if family is not None:
        overrides["family"] = family
    return plugin, read_config(plugin, published, head_of(plugin, published, head), **overrides)


def read_config(
    family: ModuleType, published: Json, head: str, /, **overrides: object
) -> ModelConfig:
    """Converts a published config to a ModelConfig.

    Raises:
      ConfigError: an unknown field, an unsupported value, or sizes that do not fit each other.
    """
    spelled = family.PUBLISHED
    published = dict(spelled.flatten(published))
    fields = Fields({**spelled.defaults, **published}, head=head)
    if "bits" in published.get("quantization", {}):
        raise ConfigError(
            "config.json: quantization: groups of few bits of mlx-lm are not read here; write"
            " floats where it is installed: mlx_lm.convert --dequantize --hf-path FOLDER"
            " --mlx-path NEW."
        )
    quantization = Fields(published).get("quantization_config", kind=dict)
    published.pop("quantization_config", None)
    if quantization is not None:
        _check_quantization(quantization)
    values = {}
    for name, field in spelled.all_fields.items():
        value = _same(fields, name, field)
        if value is not None:
            values[field] = value
    _check_fixed(fields, spelled.fixed, spelled.heads[head])
    try:
        values |= spelled.read(fields)
    except ConfigError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # The sizes make no sense, such as a division by zero heads.
        raise ConfigError(f"config.json: {error}") from None
    pad = fields.get("pad_token_id", kind=int)
    if pad is not None:
        values["pad_token_id"] = pad
    usual = values.get("num_labels", 2)
    values["num_labels"] = len(fields.get("id2label", {})) or fields.size("num_labels", usual)
    unread = {name: value for name, value in published.items() if name not in fields.read}
    _check_unread(family, unread)
    # a class that the file asks for
    fixed = {name: value for name, value in values.items() if name == "family"}
    try:
        cfg = family.config(**{**values, **overrides, **fixed, "head": head})
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json: {error}") from None
    dropout = _read_dropout(fields, cfg, RATES.get(spelled.model_type, {}))
    return replace(cfg, **{name: x for name, x in dropout.items() if name not in overrides})


def _read_dropout(
    fields: Fields, cfg: ModelConfig, of_class: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the rate of dropout and its slots, as a published config has them.

    Here all slots have one rate; those whose rate is 0 are left out.

    Args:
      fields: of the published config.
      cfg: the config that was read otherwise.
      of_class: rates that transformers' class has where the config says none.
    """

    def stated(names: Sequence[str], usual: float) -> float:
        for name in names:
            usual = fields.get(name, of_class.get(name, usual), float)
        return usual

    main = stated(MAIN_DROPOUT, cfg.dropout)
    rates = {}
    for slot in choices.DROPOUT_SLOTS:
        usual = main if slot in cfg.dropout_at else 0.0
        rates[slot] = stated(DROPOUT.get(slot, ()), usual)
    largest = max(rates.values())
    if not largest:
        return {"dropout": 0.0}
    rate = rates["branch"] or largest
    others = {slot: x for slot, x in rates.items() if x not in (0.0, rate)}
    if others:
        LOG.warning(
            "config.json: dropout of %s in other slots than %s: training here has one rate, %s.",
            ", ".join(f"{x} ({slot})" for slot, x in others.items()),
            rate,
            rate,
        )
    return {"dropout": rate, "dropout_at": tuple(slot for slot, x in rates.items() if x)}


def write_config(family: ModuleType, cfg: ModelConfig) -> Json:
    """Converts a config to its published form, which reads back as the same model.

    Raises:
      ConfigError: the family's published form cannot express this config.
    """
    spelled = family.PUBLISHED
    cfg = cfg.without_width_rule
    head = spelled.heads.get(cfg.head)
    if head is None:
        raise ConfigError(
            f"head={cfg.head!r}: a published {_name(family)} has no class for it; choose from"
            f" {', '.join(spelled.heads)}."
        )
    published = {
        "model_type": spelled.model_type,
        "architectures": [head.architecture],
        "torch_dtype": cfg.param_dtype,
    }
    for name, field in spelled.all_fields.items():
        value = getattr(cfg, field)
        if value is None:
            continue
        published[name] = ACTIVATION_NAMES[value][0] if field == "activation" else value
    # What only has one value here may be read by a loader that has no default for it.
    published |= dict(spelled.fixed) | _written(family, cfg) | head.fixed
    if cfg.pad_token_id is not None:
        published["pad_token_id"] = cfg.pad_token_id
    published |= write_labels([f"LABEL_{i}" for i in range(cfg.num_labels)], cfg)
    published = spelled.nest(published)
    # Read back at once, as what the form cannot say would be lost without a word.
    back = read_config(family, published, cfg.head)
    for field in fields_of(ModelConfig):
        meaning = MEANING.get(field.name, operator.attrgetter(field.name))
        was = meaning(cfg)
        now = meaning(back)
        if was != now and field.name not in OURS_ONLY:
            raise ConfigError(
                f"{field.name}={was!r}: a published {_name(family)} cannot have that, it would read"
                f" back as {now!r}; keep checkpoints of this model in our own format."
            )
    return published


def _written(family: ModuleType, cfg: ModelConfig) -> Json:
    """Returns the fields that a family's `write` makes of its own kind of positions."""
    usual = type(family.config().position)
    try:
        return family.PUBLISHED.write(cfg)
    # A family's `write` reads the fields of its own encoding; of another's, they are missing.
    except (AttributeError, AssertionError):
        if isinstance(cfg.position, usual):
            raise
    raise ConfigError(
        f"position={plugin_name(cfg.position)!r}: a published {_name(family)} has"
        f" {plugin_name(usual())}; keep checkpoints of this model in our own format."
    )


def _check_quantization(quantization: Json) -> None:
    """Refuses weights that are quantized otherwise than gpt-oss and DeepSeek-V3 are."""
    method = quantization.get("quant_method")
    if method is None and any(name.startswith("load_in_") for name in quantization):
        method = "bitsandbytes"  # which did not name itself at first
    if method not in ("mxfp4", "fp8"):
        raise ConfigError(
            f"config.json: quantization_config: weights quantized by {quote_value(method)} are not"
            " supported, only by mxfp4 and fp8; fetch the model in float32, float16 or bfloat16."
        )
    if method != "fp8":
        return
    from flaxformer_lite.pretrained.tensor_forms import FP8_BLOCK  # for such files alone

    size = quantization.get("weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    if size != [FP8_BLOCK, FP8_BLOCK]:
        raise ConfigError(
            f"config.json: quantization_config: weight_block_size={quote_value(size)}: FP8 is read"
            f" with a factor for each block of {FP8_BLOCK} x {FP8_BLOCK}; fetch the model in"
            " bfloat16."
        )


def _check_fixed(fields: Fields, fixed: Mapping[str, object], head: Head) -> None:
    for name, allowed in fixed.items():
        if name not in head.fixed:
            fields.require(name, allowed)
    for name, allowed in head.fixed.items():
        value = fields.get(name, kind=type(allowed))
        if value != allowed:
            raise ConfigError(
                f"config.json: {name}={quote_value(value)}: a {head.architecture} is supported with"
                f" {allowed!r} only; pass head= to read it as another."
            )


def _check_unread(family: ModuleType, unread: Json) -> None:
    """Rejects unread fields that transformers uses; reports those that it does not know."""
    spelled = family.PUBLISHED
    named = {name for name, value in unread.items() if value is not None}
    named -= HARMLESS | set(spelled.harmless)
    computed = sorted(named)
    if spelled.model_type in KNOWN:
        computed = sorted(named & (KNOWN[""] | KNOWN[spelled.model_type]))
    if computed:
        raise ConfigError(
            f"config.json: {computed[0]}={quote_value(unread[computed[0]])} is not supported for"
            f" {_name(family)} and might change the numbers; remove it from config.json if it does"
            " not."
        )
    if named:
        LOG.warning(
            "config.json: %s: not a field of transformers' %s, so ignored there and here.",
            ", ".join(map(quote_name, sorted(named))),
            _name(family),
        )


def write_labels(labels: Sequence[str], cfg: ModelConfig) -> Json:
    """Returns the fields of config.json that name a model's classes."""
    if len(set(labels)) != cfg.num_labels or len(labels) != cfg.num_labels:
        raise ConfigError(
            f"labels={list(labels)!r}: the model has {cfg.num_labels} classes; give each its own"
            " name."
        )
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def read_labels(published: Json) -> list[str]:
    """Reads the names of the classes in order; [] if config.json has none."""
    named = published.get("id2label") or {}
    try:
        names = {int(i): label for i, label in named.items()}
        return [str(names[i]) for i in range(len(names))]
    except (AttributeError, ValueError, KeyError):
        raise ConfigError(
            f"config.json: id2label={quote_value(named)}: must have a name for each of 0, 1, 2, ..."
        ) from None


def _same(fields: Fields, name: str, ours: str) -> Any:
    """Reads a published field that ModelConfig has under another name; None if it is absent."""
    kind = KINDS[ours]
    value = fields.get(name, kind=kind)
    if value is None:
        return None
    least = int(kind is int and ours not in MAY_BE_ZERO)
    if kind in (int, float) and value < least:
        raise ConfigError(f"config.json: {name}={quote_value(value)}: must be at least {least}.")
    if ours == "activation":
        return activation_of(name, value)
    return value


def _name(family: ModuleType) -> str:
    return family.__name__.rsplit(".", 1)[-1]
