"""The records of an experiment, and the rules that join them.

Every rule that needs no array is checked here, so that a mistake costs a second and a sentence instead of a compilation
and a stack trace.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from flaxformer_lite.config import choices
from flaxformer_lite.config.architecture import ModelConfig, check_family
from flaxformer_lite.config.rules import ConfigError, among, local_path, not_negative, plugin_name, positive


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    name: str = "byte_bpe"  # byte_bpe, sentencepiece (both trained on the text) or bytes
    path: str = ""  # a tokenizer.json or a sentencepiece model to use instead
    vocab_size: int = 8192  # size of a trained tokenizer

    def __post_init__(self) -> None:
        among(self, "name", choices.TOKENIZERS)
        local_path("path", self.path)
        positive(self, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str = ""  # a file or folder of text, jsonl or gz; empty: `corpus`
    text_field: str = "text"  # the field of each jsonl line to read; pairs have "source" and "target"
    corpus: str = "stdlib_code"  # built in: stdlib_code (Python), docstrings (English), code_docstrings (pairs of both)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    length: int = 128  # T, tokens an example
    target_length: int = 0  # T of the decoder in sequence-to-sequence objectives; 0: what the objective needs
    eval_fraction: float = 0.02  # share of the text held out, by a hash of each document, or the end of few documents
    cache: str = "~/.cache/flaxformer_lite"  # tokenized records, by content hash

    def __post_init__(self) -> None:
        positive(self, "length")
        if self.text_field != "text" and not self.path:
            raise ConfigError(
                f"data.text_field={self.text_field!r}: applies to your own jsonl only; set data.path to it."
            )
        not_negative(self, "target_length")
        among(self, "corpus", choices.CORPORA)
        local_path("path", self.path)
        local_path("cache", self.cache)
        if not 0 < self.eval_fraction < 1:
            raise ConfigError(f"data.eval_fraction={self.eval_fraction}: must be strictly between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"  # adamw, adafactor, lion, sgd, muon
    learning_rate: float = 3e-4  # the peak
    schedule: str = "cosine"  # cosine, linear, rsqrt, constant, wsd
    warmup_steps: int = 100  # linear, from 0 to the peak
    decay_steps: int = 0  # length of wsd's final decay; 0: a tenth of train.steps
    final_fraction: float = 0.1  # of the peak, at the last step (cosine, linear, wsd)
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.95  # decay of the mean of their squares
    eps: float = 1e-8  # added to the root of that mean, against division by zero
    weight_decay: float = 0.1  # on matrices only, never on norms, biases or position tables
    clip_norm: float = 1.0  # largest global norm of the gradient; 0: off
    freeze: tuple[str, ...] = ()  # regular expressions; parameters with matching paths are not trained

    def __post_init__(self) -> None:
        among(self, "name", choices.OPTIMIZERS)
        among(self, "schedule", choices.SCHEDULES)
        positive(self, "learning_rate")
        for pattern in self.freeze:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"freeze={pattern!r}: not a regular expression ({error}).") from None
        not_negative(self, "warmup_steps", "decay_steps", "weight_decay", "clip_norm", "final_fraction")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 1000  # updates in total, including those before a resume
    batch_size: int = 32  # sequences per step, over all devices and microbatches
    accumulate: int = 1  # microbatches per step
    loss_chunks: int = 4  # the logits of one chunk exist at a time; 1 holds all of B x T x V
    log_every: int = 20  # steps from one record to the next
    eval_every: int = 200  # steps from one evaluation to the next
    eval_batches: int = 20  # at most; the held-out text may be shorter
    checkpoint_every: int = 200  # steps from one checkpoint to the next
    keep: int = 3  # number of newest checkpoints to keep
    sample_tokens: int = 0  # length of the sample text written after training, for decoders
    cpu_tuning: bool = True  # optimizations for XLA:CPU (functions/cpu_tuning.py); they change no number
    init_from: str = ""  # a model directory or workdir to take model, weights and tokenizer from; empty: random weights

    def __post_init__(self) -> None:
        positive(
            self,
            "steps",
            "batch_size",
            "accumulate",
            "loss_chunks",
            "log_every",
            "eval_every",
            "eval_batches",
            "checkpoint_every",
            "keep",
        )
        local_path("init_from", self.init_from)
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"train.batch_size={self.batch_size}, train.accumulate={self.accumulate}: the batch must be a"
                f" multiple of the microbatches."
            )


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The number of devices along each axis; one of them may be -1, for all that are left."""

    data: int = -1  # copies of the weights, over all slices
    fsdp: int = 1  # splits the batch and the weights
    context: int = 1  # splits the sequence
    tensor: int = 1  # splits heads, feed-forward width and vocabulary
    slices: int = 1  # parts of `data` joined by a data-center network, such as TPU slices
    mode: str = "jit"  # or shard_map, pmap: data parallelism written by hand, with the same numbers

    def __post_init__(self) -> None:
        sizes = {axis: getattr(self, axis) for axis in ("data", "fsdp", "context", "tensor")}
        if any(n == 0 or n < -1 for n in sizes.values()) or list(sizes.values()).count(-1) > 1:
            raise ConfigError(f"mesh={sizes}: sizes must be positive, except that one may be -1.")
        positive(self, "slices")
        if self.data > 0 and self.data % self.slices:
            raise ConfigError(
                f"mesh.data={self.data}, mesh.slices={self.slices}: data must be a multiple of the slices; try"
                f" mesh.data={-(-self.data // self.slices) * self.slices}."
            )
        among(self, "mode", choices.MESH_MODES)
        if self.mode != "jit" and not self.fsdp == self.context == self.tensor == 1:
            raise ConfigError(
                f"mesh.mode={self.mode!r}, mesh.fsdp={self.fsdp}, mesh.context={self.context},"
                f" mesh.tensor={self.tensor}: this mode splits the batch only; set the three to 1, or"
                f" mesh.mode=jit."
            )


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    seed: int = 0  # seeds the parameters, dropout and the order of examples
    model: ModelConfig
    objective: Any = field(metadata={"plugin": "objectives"})
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        not_negative(self, "seed")
        model, objective = self.model, plugin_name(self.objective)
        check_family(model, "model.")
        if model.skeleton not in self.objective.skeletons:
            raise ConfigError(
                f"model.family={model.family!r}, objective.name={objective!r}: the objective is for"
                f" {' and '.join(self.objective.skeletons).replace('_', '-')} models, the family's skeleton is"
                f" {model.skeleton.replace('_', '-')}; change either."
            )
        head = self.objective.head_for(model.skeleton)
        if head not in ("", model.head):
            raise ConfigError(
                f"model.head={model.head!r}: {objective} as configured trains {head!r}; set model.head={head}."
            )
        longest = max(self.data.length, self.data.target_length)
        if longest > model.max_length and model.has_position_table:
            way = f"set data.length={model.max_length}" if self.train.init_from else (
                f"shorten the examples or set model.max_length={longest}")  # fmt: skip
            raise ConfigError(
                f"data.length={longest}, model.max_length={model.max_length}: {plugin_name(model.position)}"
                f" positions end there; {way}."
            )
