"""Experiments with `train.init_from`, which take the model and tokenizer from a directory."""

import contextlib
import dataclasses
import json
import operator
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import frozen_base, mirror, run_inputs, workdir
from flaxformer_lite.config import (
    ConfigError,
    ExperimentConfig,
    ModelConfig,
    PluginError,
    TokenizerConfig,
    TrainConfig,
    from_config_dict,
    page_plugins,
    plugin_name,
    required_head,
    to_config_dict,
)
from flaxformer_lite.config.architecture import INIT_FIELDS, TASK_FIELDS, WEIGHTLESS_FIELDS
from flaxformer_lite.config.execution import EXECUTION_FIELDS
from flaxformer_lite.data.open_tokenizer import open_tokenizer
from flaxformer_lite.files.read import Json, parse_object
from flaxformer_lite.model_details import load_sentence_layers, load_tokenizer, template_of
from flaxformer_lite.model_folder import find_run_config, is_workdir, on_disk
from flaxformer_lite.objectives.base import Objective
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained import folder, hf_config
from flaxformer_lite.pretrained.safetensors import WeightsError
from flaxformer_lite.pretrained.sentences import is_cross_encoder, read_score_activation
from flaxformer_lite.pretrained.tokenizer import BYTES
from flaxformer_lite.runs.start import resume
from flaxformer_lite.storage.objects import objects_at
from flaxformer_lite.storage.stores import StorageError, is_url
from flaxformer_lite.text import tokenizer
from flaxformer_lite.text.published_tokenizer import JSON

# always taken from the config, not from the directory
OWN = (
    *EXECUTION_FIELDS,
    *INIT_FIELDS,
    "adapter",
)


@dataclasses.dataclass(frozen=True)
class _Section:
    objective: Any = dataclasses.field(metadata={"plugin": "objectives"})


def read_experiment(
    config: ConfigDict,
    run: str | Path | None = None,
    given: Collection[str] = (),
    *,
    allow_plugins: bool = False,
) -> ExperimentConfig:
    """Resolves a config; with `train.init_from`, the model comes from that directory.

    It replaces the page's model, except for the fields of OWN, and gets the objective's head. The
    text is tokenized with the directory's tokenizer unless `data.tokenizer` is set. A run with a
    checkpoint keeps the model that it started from, so the directory need not exist anymore.

    Args:
      given: fields set on the command line, such as "model.d_model", which must agree with the
        weights.
      allow_plugins: whether directories that the run reads may name plug-ins outside the package
        that the config itself does not name.

    Raises:
      ConfigError: the directory has no such model, or the command line asks for a different one;
        names all fields.
    """
    train = from_config_dict(TrainConfig, config.get("train", {}), "config.train")
    if run and "data.tokenizer.frame" not in given:
        config = _with_frame(config, run)
    if not train.init_from:
        cfg = from_config_dict(ExperimentConfig, config)
        return dataclasses.replace(cfg, allow_plugins=allow_plugins)
    if run and is_url(run):
        run = mirror.fetched(str(run))
    allowed = allow_plugins or page_plugins(config)
    begun = _begun(run, train.init_from, allowed)
    objective = _objective_of(config)
    try:
        if begun:  # the directory that it began from may be gone
            model = begun.model
            facts = _adopted(begun.objective)
        else:
            source = on_disk(train.init_from)
            model = _model_of(config, train.init_from, source, allowed)
            facts = _facts(objective.adopts, train.init_from, source, allowed)
    except (WeightsError, StorageError) as error:
        raise ConfigError(f"train.init_from: {error}") from None
    section = dict(config.get("model", {}))
    requested = [name.removeprefix("model.") for name in given if name.startswith("model.")]
    _check(train.init_from, model, section, requested)
    if not begun and "decoder_start_token_id" not in requested:
        _check_start(train.init_from, model)
    data = dict(config.get("data", {}))
    tokenizer = dict(data.get("tokenizer", {}))
    if not tokenizer.get("path") and not _names_tokenizer(given):
        if begun and run:
            tokenizer["path"] = _kept_tokenizer(begun, Path(run))
        else:
            tokenizer["path"] = tokenizer_of(train.init_from)
    if not begun:
        model = _with_room(model, tokenizer)
    values = {
        **config,
        "model": _merged(model, section, requested),
        "objective": to_config_dict(_Section(objective=objective.adopt(facts)))["objective"],
        "data": {**data, "tokenizer": tokenizer},
    }
    cfg = from_config_dict(ExperimentConfig, values)
    return dataclasses.replace(cfg, allow_plugins=allow_plugins)


def _names_tokenizer(given: Collection[str]) -> bool:
    """Returns whether the command line names a tokenizer, not only tokens to add to one."""
    fields = [name for name in given if name.startswith("data.tokenizer.")]
    return any(name != "data.tokenizer.add" for name in fields)


def _with_room(model: ModelConfig, tokenizer: Json) -> ModelConfig:
    """Returns a model with room for the tokens that are added to its tokenizer."""
    if not tokenizer.get("add") or not tokenizer.get("path"):
        return model
    chosen = from_config_dict(TokenizerConfig, tokenizer, "config.data.tokenizer")
    grown = open_tokenizer(chosen.path, chosen.add, chosen.frame)
    return dataclasses.replace(model, vocab_size=max(model.vocab_size, grown.vocab_size))


def _merged(model: ModelConfig, section: Json, requested: Collection[str]) -> Json:
    """Returns the fields of the directory's model, with those that the config's section keeps."""
    merged = to_config_dict(model).to_dict()
    kept = {*OWN, *({*TASK_FIELDS, "max_length"} & {*requested})}
    for part in ("mixer", "feed_forward"):
        if section.get(part, {}).get("name"):  # it wraps the model's
            kept.add(part)
    return merged | {name: value for name, value in section.items() if name in kept}


def _objective_of(config: ConfigDict) -> Objective:
    return from_config_dict(_Section, {"objective": config.get("objective", {})}).objective


def _facts(names: Collection[str], init_from: str, path: Path, allowed: registry.Allowed) -> Json:
    """Reads what an objective adopts from a directory, such as its chat template."""
    facts: Json = {}
    if "template" in names:
        facts["template"] = template_of(path, allow_plugins=allowed)
    if "pooling" in names:
        layers = load_sentence_layers(path, allow_plugins=allowed)
        if layers.dense:
            raise ConfigError(
                f"train.init_from={init_from}: has a dense layer after pooling, which is not"
                " trained; remove it from its modules.json to start from the encoder alone."
            )
        facts |= {"pooling": layers.pooling, "prompts": layers.prompts}
    if "activation" in names:
        run = find_run_config(path, allow_plugins=allowed)
        if run is not None:
            facts |= _adopted(run.objective)
        elif is_cross_encoder(path):
            facts["activation"] = read_score_activation(path)
    return facts


def _adopted(objective: Objective) -> Json:
    """Returns the values of the fields that an objective adopts, which its run keeps."""
    return {name: getattr(objective, name) for name in objective.adopts}


def differing_fields(stored: ModelConfig, model: ModelConfig) -> dict[str, tuple[object, object]]:
    """Returns the fields in which two models' parameters differ, with the value of each."""
    names = ["family"]
    for field in dataclasses.fields(ModelConfig):
        wraps_standard_part = getattr(getattr(model, field.name), "added", ())
        no_weights = {*hf_config.OURS_ONLY, *hf_config.PUBLISHED_IDS}
        if field.name not in no_weights and not wraps_standard_part:
            names.append(field.name)
    if stored.has_position_table:
        names.append("max_length")
    different = {}
    for name in names:
        meaning = hf_config.MEANING.get(name, operator.attrgetter(name))
        values = (meaning(stored), meaning(model))
        follows_from_another = getattr(stored, name) == getattr(model, name)
        if values[0] != values[1] and not follows_from_another:
            different[name] = values
    return different


def format_flags(model: ModelConfig, names: Collection[str]) -> str:
    """Formats command-line flags that set these fields to the model's values."""
    values = flatten_dict(to_config_dict(model).to_dict(), sep=".")
    flags = []
    for name in names:
        for leaf, value in values.items():
            is_within = leaf == name or leaf.startswith(f"{name}.")
            if is_within and value is not None:
                flags.append(f"--config.model.{leaf}={value}")
    return shlex.join(flags)


def _begun(
    run: str | Path | None, init_from: str, allowed: registry.Allowed
) -> ExperimentConfig | None:
    """Returns the resolved config of a run that started from this directory.

    None if there is no such run, or it has no checkpoint yet.
    """
    if run is None or not workdir.newest_first(Path(run), "checkpoints"):
        return None
    try:
        stored = workdir.read_config(Path(run), allow_plugins=allowed)
    except PluginError:
        # A ConfigError too, but of a file that is whole: it names a plug-in that is not allowed.
        raise
    except ConfigError:  # damaged; the next start writes it again
        return None
    # Frozen weights may be moved: they are compared by their digests.
    if stored.train.init_from != init_from and not (Path(run) / frozen_base.FILE).is_file():
        return None
    return stored


def _with_frame(config: ConfigDict, run: str | Path) -> ConfigDict:
    """Returns a page that frames documents as its run does, if one has begun."""
    store = objects_at(str(run))
    inputs: Json = {}
    with contextlib.suppress(ConfigError, StorageError):  # damaged; the next start tells it
        if store and store.below("checkpoints").names():
            inputs = parse_object(store.read("config.json") or b"{}", f"{run}/config.json")
        elif not store and workdir.newest_first(mirror.place_of(run), "checkpoints"):
            inputs = workdir.read_inputs(mirror.place_of(run))
    if not isinstance(inputs.get("config"), dict):
        return config
    stored = workdir.complete_config(inputs["config"])
    values = config.to_dict()
    tokenizer = values.get("data", {}).get("tokenizer")
    frame = stored.get("data", {}).get("tokenizer", {}).get("frame")
    if tokenizer is not None and frame:
        tokenizer["frame"] = frame
    return ConfigDict(values)


def _model_of(
    config: ConfigDict, init_from: str, path: Path, allowed: registry.Allowed
) -> ModelConfig:
    where = f"train.init_from={init_from}"
    objective = _objective_of(config)
    named = dict(config.get("model", {})).get("family") or ""
    # the page's own family is replaced; one from outside is the user's word
    named = named if ":" in named else None
    run = find_run_config(path, allow_plugins=allowed)
    if run:
        name = run.model.family
        family = registry.resolve("models", name)
    else:
        published = folder.read_config(path)
        family = hf_config.family_of(published, path, named)
        name = published["model_type"]
    skeleton = family.Model.skeleton
    if skeleton not in objective.skeletons:
        raise ConfigError(
            f"{where}: it holds a {name}, with the skeleton {skeleton.replace('_', '-')}, but"
            f" objective.name={plugin_name(objective)} trains"
            f" {' and '.join(objective.skeletons).replace('_', '-')} models; change either."
        )
    head = required_head(objective, skeleton)
    try:
        if run:  # its weights are read when needed
            return dataclasses.replace(run.model, head=head or run.model.head)
        return open_pretrained(path, head or None, family=named, new_head=objective.new_head)[0].cfg
    except (ConfigError, WeightsError) as error:
        hint = ""
        if plugin_name(objective) == "masked_lm" and head == "pretraining":
            hint = " --config.objective.pairs=none trains the masked-LM head alone."
        raise ConfigError(
            f"{where}: {plugin_name(objective)} as configured trains the head {head!r}:"
            f" {error}{hint}"
        ) from None


def _check(init_from: str, model: ModelConfig, section: Json, requested: Collection[str]) -> None:
    """Checks that fields set on the command line agree with the weights."""
    fields = flatten_dict(resume.plain(model), sep=".")
    # As a round trip through JSON gives them, tuples as lists.
    plain = json.loads(json.dumps(ConfigDict(section).to_dict(), default=str))
    adopted = flatten_dict(plain, sep=".")
    free = set(WEIGHTLESS_FIELDS)
    if not model.has_position_table:
        free.add("max_length")
    # Sections of plug-ins that replace parts of the model, or are added to them.
    wraps = ("mixer.", "feed_forward.", "adapter.")
    wrong = {}
    for name in requested:
        if name in free or name not in adopted or name.startswith(wraps):
            continue
        if not _says(model, fields, name, adopted[name]):
            wrong[name] = adopted[name]
    if wrong:
        clauses = []
        for name, value in wrong.items():
            clauses.append(f"model.{name}={value}, where its weights have {fields.get(name)}")
        listed = "; ".join(clauses)
        raise ConfigError(
            f"train.init_from={init_from}: the command line asks for another model: {listed}. The"
            " model comes from the directory: leave these flags out, or set"
            f" {format_flags(model, wrong)}."
        )


def _check_start(init_from: str, model: ModelConfig) -> None:
    """Refuses a model whose decoder starts with a language, where none is named.

    transformers starts it with the last token of the target. Ours end with the end of the text.
    """
    named = model.decoder_start_token_id is not None
    if named or model.head != "lm" or model.skeleton != "encoder_decoder":
        return
    if registry.resolve("models", model.family).Model.starts_with_language:
        raise ConfigError(
            f"train.init_from={init_from}: its model has no decoder_start_token_id, as the"
            f" decoder of {model.family} starts with the token of the target's language; name it:"
            " --config.model.decoder_start_token_id=ID."
        )


def _says(model: ModelConfig, fields: Json, name: str, value: Any) -> bool:
    if value == fields.get(name) or (name == "vocab_size" and value == 0):
        return True
    meaning = hf_config.MEANING.get(name)
    if meaning is None:
        return False
    if isinstance(value, list):
        value = tuple(value)
    with contextlib.suppress(ConfigError, TypeError):
        changed = dataclasses.replace(model, **{name: value})
        return meaning(changed) == meaning(model)
    return False


def tokenizer_of(folder: str, field: str = "train.init_from") -> str:
    """Returns the path of the tokenizer of a model directory or workdir, for `data.tokenizer.path`.

    Raises:
      ConfigError: it has none that we read; names the field.
    """
    path = on_disk(folder, weights=False)
    local = path
    if is_workdir(path):
        local = run_inputs.tokenizer_folder(path)
    elif not any((path / name).is_file() for name in (JSON, BYTES)):
        try:
            load_tokenizer(path)  # raises with what is there instead
            tokenizer.load(path)  # raises where training does not read it, as Marian's two
        except ConfigError as error:
            raise ConfigError(
                f"{field}: {error} Or name one: --config.data.tokenizer.path=FILE."
            ) from None
    if not is_url(folder):
        return str(local)
    if local == path:
        return folder
    return f"{folder.rstrip('/')}/{local.name}"


def _kept_tokenizer(begun: ExperimentConfig, run: Path) -> str:
    """Returns the tokenizer of a resumed run, from its original place or the run's own copy."""
    path = begun.data.tokenizer.path
    with contextlib.suppress(StorageError):
        if not path or on_disk(path, weights=False).exists():
            return path
    return str(run_inputs.tokenizer_folder(run))
