"""Evaluates a trained model on a file: metrics, and predictions for each row."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.checkpoints import run_inputs, workdir
from flaxformer_lite.config import (
    ConfigError,
    DataConfig,
    ExperimentConfig,
    TokenizerConfig,
    plugin_name,
)
from flaxformer_lite.data import dataset
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.data.padding import Buckets, Packer
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.writer import make_writer
from flaxformer_lite.model_details import load_tokenizer
from flaxformer_lite.model_folder import find_run_config
from flaxformer_lite.objectives.base import Objective, WritesText
from flaxformer_lite.objectives.tables.task import Task
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained import folder
from flaxformer_lite.pretrained.load import read_labels
from flaxformer_lite.pretrained.sentences import (
    is_cross_encoder,
    read_score_activation,
    read_sentence_layers,
)
from flaxformer_lite.pretrained.tokenizer import read_plugin_tokenizer
from flaxformer_lite.runs import padding
from flaxformer_lite.runtime.progress import count_progress
from flaxformer_lite.text import tokenizer
from flaxformer_lite.training import evaluate, program
from flaxformer_lite.training.bound_models import Models
from flaxformer_lite.types import Params

USUAL_LENGTH = 512  # tokens of an example, unless the published folder specifies it


Item = TypeVar("Item")
OBJECTIVES = {  # that published heads were trained with
    "sequence_classification": "classification",
    "token_classification": "tagging",
    "question_answering": "question_answering",
    "multiple_choice": "multiple_choice",
    "none": "sentence_embeddings",
    "encoder": "sentence_embeddings",
    "masked_lm": "masked_lm",
    "pretraining": "masked_lm",
}
OF_LM = {"decoder": "causal_lm", "encoder_decoder": "text_to_text"}  # by the skeleton


class Trained(NamedTuple):
    """A model with the task that it was trained for."""

    cfg: ExperimentConfig
    model: nn.Module
    params: Params
    tokenizer: tokenizer.Tokenizer
    fitted: Json | None = None  # what the baseline learned from the training examples

    def baseline(self, data: Dataset) -> tuple[str, float] | None:
        """Returns the name and headline value of the objective's baseline on the examples.

        None if the baseline is fitted to training examples and these are not known.
        """
        try:
            return data.objective.baseline(data, self.fitted)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"{workdir.BASELINE}: does not fit the run's objective ({error}); delete it, and"
                " `evaluate` shows no baseline."
            ) from error

    def evaluate(
        self, data: Dataset, *, scored: bool = True
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Computes the objective's metrics (if `scored`) and its predictions.

        Predictions are in the order of the records.
        """
        objective = data.objective
        size = min(self.cfg.train.batch_size, data.num_examples)
        packs = not padding.packing_error(self.cfg.model, self.model, self.tokenizer.pad_id)
        packer: Packer | Buckets | None = None
        if packs and data.texts:
            packer = data.packer(size)
        elif not padding.cutting_error(self.cfg.model, self.model, data.records.length):
            packer = data.buckets(size)
        step = jax.jit(program.eval_step(self.cfg, Models(objective, self.model.tuned())))
        with count_progress("evaluating", data.num_examples) as advance:
            batches = _counted(data.batches(batch_size=size, packer=packer), size, advance)
            total, shuffled = evaluate.run(step, self.params, batches, data)
        ordered = {name: values[np.argsort(data.order)] for name, values in shuffled.items()}
        metrics = {}
        if scored:
            metrics = evaluate.metrics_of(objective, total, shuffled, data)
        if not isinstance(objective, WritesText):
            return metrics, ordered
        everything = np.arange(data.num_examples)
        write = make_writer(self.model, self.params, self.tokenizer)
        written = objective.write(write, data.records, everything)
        if scored:
            metrics |= objective.scores(written, everything, data)
        return metrics, ordered | written


def open_trained(
    path: Path,
    *,
    dtype: str = "float32",
    family: str | None = None,
    base: str | Path | None = None,
    allow_plugins: registry.Allowed = False,
    **options: Any,
) -> Trained:
    """Opens a run's workdir, or a directory of published weights as the task of its head.

    Args:
      dtype: of activations and matmuls.
      family, base, allow_plugins: as in `load_pretrained`.
      **options: `length` and `columns` of the data section, and `batch_size`, in place of the
        run's; None keeps them.

    Raises:
      ConfigError, WeightsError, CheckpointError: it cannot be read, or no task is known for its
        head.
    """
    model, params = load_pretrained(
        path, dtype=dtype, family=family, base=base, allow_plugins=allow_plugins
    )
    fitted = None
    cfg = find_run_config(path, allow_plugins=allow_plugins)
    if cfg is not None:
        fitted = workdir.read_baseline(path)
        tokenizer_folder = run_inputs.tokenizer_folder(path)
        # not one trained on the file
        chosen = dataclasses.replace(cfg.data.tokenizer, path=str(tokenizer_folder))
        data = dataclasses.replace(cfg.data, tokenizer=chosen)
        cfg = dataclasses.replace(cfg, model=model.cfg, data=data)
        words = tokenizer.load(tokenizer_folder)
        second = cfg.objective.auxiliary_model(cfg.model)
        if second:
            raise ConfigError(
                f"{path}: {plugin_name(cfg.objective)} is evaluated with its {second.name}, which"
                " only the run itself has; metrics.jsonl holds its evaluations."
            )
    else:
        words = read_plugin_tokenizer(path) or tokenizer.load(path)
        objective = _objective_of(path, model)
        longest = USUAL_LENGTH
        if isinstance(objective, Task):  # cut where the libraries that publish such folders cut
            longest = load_tokenizer(path, family=family).max_length or USUAL_LENGTH
        if "pooling" in objective.adopts:
            longest = min(longest, read_sentence_layers(path).limit or longest)
        if model.cfg.has_position_table:
            longest = min(longest, model.cfg.max_length)
        data = DataConfig(tokenizer=TokenizerConfig(path=str(path)), length=longest)
        cfg = ExperimentConfig(model=model.cfg, objective=objective, data=data)
        _check_end(path, cfg, words)
    given = {name: value for name, value in options.items() if value is not None}
    size = given.pop("batch_size", cfg.train.batch_size)
    # The run's microbatches need not divide the size that was asked for.
    train = dataclasses.replace(cfg.train, batch_size=size, accumulate=1)
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, **given), train=train)
    return Trained(cfg, model, params, words, fitted)


def open_file(trained: Trained, path: str, *, predicts: bool = False) -> Dataset:
    """Opens a file as held-out examples.

    Args:
      path: a table for tasks, text for other objectives.
      predicts: whether the columns that the task predicts are ignored; they may be missing.

    Raises:
      ConfigError: the file cannot be read, or is of another form.
    """
    return dataset.open_file(trained.cfg, path, trained.tokenizer, predicts=predicts)


def _objective_of(path: Path, model: nn.Module) -> Objective:
    head = model.cfg.head
    name = of_head(head, model.skeleton)
    published = folder.read_config(path) | {"head": head}
    if head == "sequence_classification" and is_cross_encoder(path):
        name = "reranking"
        published["activation"] = read_score_activation(path)
    if not name:
        raise ConfigError(
            f"{path}: the head {head!r} of a {model.cfg.family} has no task; fine-tune it first"
            " (train)."
        )
    cls: type[Objective] = registry.resolve_class("objectives", name)
    if model.skeleton not in cls.skeletons:
        raise ConfigError(
            f"{path}: {plugin_name(cls())} has no {model.skeleton}s like this {model.cfg.family}."
        )
    if "pooling" in cls.adopts:
        layers = read_sentence_layers(path)
        default = layers.prompt()
        prompts = [layers.prompt_of(task) or default for task in ("query", "document")]
        if any(prompts) and not layers.include_prompt:
            raise ConfigError(
                f"{path}: pools without the tokens of its prompts {prompts!r}, which"
                " evaluate does not; make default_prompt_name null and prompts empty, or use embed."
            )
        published |= {"pooling": layers.pooling, "prompts": prompts}
    labels = tuple(read_labels(path)) if "labels" in cls.adopts else ()
    return cls.of_published(published, labels)


def _check_end(path: Path, cfg: ExperimentConfig, words: tokenizer.Tokenizer) -> None:
    """Checks that texts have the end token at which the model's classifier reads.

    Raises:
      ConfigError: they end with another, so that no logit would be a number.
    """
    if cfg.model.head != "sequence_classification" or cfg.model.skeleton != "encoder_decoder":
        return
    fitted = cfg.objective.fit_model(cfg.model, words)
    if fitted.eos_token_id != cfg.model.eos_token_id:
        raise ConfigError(
            f"{path}: config.json has eos_token_id={cfg.model.eos_token_id}, where the classifier"
            f" of a {cfg.model.family} reads, and the tokenizer ends a text with"
            f" {fitted.eos_token_id}; set eos_token_id={fitted.eos_token_id}, or mend the template"
            " of tokenizer.json."
        )


def _counted(
    batches: Iterator[Item], size: int, advance: Callable[[int], object]
) -> Iterator[Item]:
    for batch in batches:
        yield batch
        advance(size)


def of_head(head: str, skeleton: str) -> str:
    """Returns the name of the objective of a model's head; "" if none is known."""
    if head == "lm":
        return OF_LM.get(skeleton, "")
    return OBJECTIVES.get(head, "")
