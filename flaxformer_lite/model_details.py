"""Loads what lies beside a model's weights: its tokenizer, classes, pooling and settings."""

from pathlib import Path

from flaxformer_lite import registry
from flaxformer_lite.checkpoints.run_inputs import tokenizer_folder
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.published import read_settings
from flaxformer_lite.model_folder import find_run_config, is_workdir, on_disk
from flaxformer_lite.open_model import open_pretrained
from flaxformer_lite.pretrained import chat, load, sentences, tokenizer, word_vectors
from flaxformer_lite.text import tokenizer as plain
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer


def load_labels(path: str | Path, *, allow_plugins: registry.Allowed = False) -> list[str]:
    """Loads the names of the classes of a classifier, in the order of its logits.

        >>> load_labels("path/to/sst2")[int(logits[0].argmax())]  # doctest: +SKIP

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Returns:
      The names; `LABEL_0`, `LABEL_1` and so on if the directory has none.

    Raises:
      ConfigError, WeightsError: config.json is missing, or its names are invalid.
    """
    folder = on_disk(path, weights=False)
    run = find_run_config(folder, allow_plugins=allow_plugins)
    if run is None:
        return load.read_labels(folder)
    labels = list(run.objective.published_fields().get("labels", ()))
    return labels or [f"LABEL_{i}" for i in range(run.model.num_labels)]


def load_tokenizer(
    path: str | Path,
    *,
    family: str | None = None,
    allow_plugins: registry.Allowed = False,
) -> PublishedTokenizer:
    """Loads the tokenizer of a directory of published weights, or of a training run's workdir.

        >>> tokenizer = load_tokenizer("path/to/bert")  # doctest: +SKIP

    Args:
      path: a directory with tokenizer.json, or with config.json and what older models have, such
        as vocab.txt or a sentencepiece model; tokenizer_config.json, special_tokens_map.json,
        added_tokens.json and chat_template.jinja are read if they exist. Or the `--workdir` of a
        training run.
      family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError: there is no tokenizer of a known kind, or it is damaged.
    """
    folder = on_disk(path, weights=False)
    run = find_run_config(folder, allow_plugins=allow_plugins)
    if run is None:
        return tokenizer.read_tokenizer(folder, family=family)
    fields = run.objective.published_fields()
    template = fields.get("chat_template", "")
    inner = plain.load(tokenizer_folder(folder), frame=run.data.tokenizer.frame)
    is_sentence_model = sentences.trained_layers(fields, run.data.length) is not None
    return tokenizer.framed(inner, run.model.skeleton, template, as_published=is_sentence_model)


def load_word_vectors(
    path: str | Path, *, family: str | None = None, allow_plugins: registry.Allowed = False
) -> word_vectors.WordVectors:
    """Loads the token table of published weights or of a training workdir, and nothing else.

        >>> vectors = load_word_vectors("path/to/bert")  # doctest: +SKIP
        >>> vectors.analogy("paris", "france", "london", 1)  # doctest: +SKIP

    Args:
      path, family, allow_plugins: as in `load_pretrained`.

    Raises:
      ConfigError, WeightsError, CheckpointError: the table cannot be read, or no token of the
        vocabulary is a whole word.
    """
    folder = on_disk(path)
    _, stored = open_pretrained(folder, family=family, allow_plugins=allow_plugins)
    where = str(folder)
    table_VD = word_vectors.token_table(stored, where)
    published = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    pieces_folder = folder
    if is_workdir(folder):
        pieces_folder = tokenizer_folder(folder)
    inner = tokenizer.read_plugin_tokenizer(pieces_folder) or plain.load(pieces_folder)
    return word_vectors.vectors_of(table_VD, published, inner.pieces(), where)


def load_sentence_layers(
    path: str | Path, *, allow_plugins: registry.Allowed = False
) -> sentences.SentenceLayers:
    """Loads the layers that follow the encoder of a sentence model: pooling, dense, normalization.

    Args:
      path, allow_plugins: as in `load_pretrained`.

    Returns:
      The layers; the default is mean pooling, if the directory says nothing.

    Raises:
      ConfigError, WeightsError: the directory has a kind of pooling or layer that is not supported.
    """
    folder = on_disk(path, weights=False)
    run = find_run_config(folder, allow_plugins=allow_plugins)
    if run is None:
        return sentences.read_sentence_layers(folder)
    layers = sentences.trained_layers(run.objective.published_fields(), run.data.length)
    return layers or sentences.SentenceLayers()


def template_of(path: str | Path, *, allow_plugins: registry.Allowed = False) -> str:
    """Reads the chat template of a directory, with its special tokens filled in; "" if none."""
    return chat.standalone_template(load_tokenizer(path, allow_plugins=allow_plugins))


def published_settings(path: str | Path) -> Json:
    """Reads the generation settings of a model's authors, as keyword arguments of `generate`.

        >>> settings = published_settings(path) | {"max_new_tokens": 64}  # doctest: +SKIP
        >>> generate(model, params, prompts, **settings)  # doctest: +SKIP

    As in transformers, they are in generation_config.json, or in config.json if that file does not
    exist. Settings of lengths are left out.

    Args:
      path: a directory that transformers' save_pretrained wrote.

    Raises:
      ConfigError: a file is not JSON, a setting has a wrong type, or transformers computes it and
        `generate` does not.
    """
    return read_settings(on_disk(path, weights=False))
