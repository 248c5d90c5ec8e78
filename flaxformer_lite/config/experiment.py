"""The records of an experiment, and the rules that join them.

Every rule that needs no array is checked here, so that a mistake costs a second and a sentence
instead of a compilation and a stack trace.
"""

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from flaxformer_lite.config import choices
from flaxformer_lite.config.architecture import ModelConfig, check_family
from flaxformer_lite.config.mixture import SourceConfig, check_mixture, is_schedule
from flaxformer_lite.config.parts import AdapterConfig
from flaxformer_lite.config.rules import (
    MAX_INT32,
    MAY_CHANGE,
    REORDERS_SUMS,
    ConfigError,
    Count,
    DataPlace,
    ModelPlace,
    NotNegative,
    OneOf,
    Place,
    Plugin,
    Positive,
    Probability,
    Range,
    Record,
    Sections,
    Share,
    Size,
    format_value,
    is_given,
    is_interval,
    is_pattern,
    is_rate,
    is_token,
    plugin_name,
)

# beyond which a size is a typo: tokens of a batch, numbers of its activations and of one weight
MOST_TOKENS = 2**32
MOST_NUMBERS = 2**46
MOST_WEIGHTS = 2**36
DEFAULT_STEPS = 1000  # of a run with neither steps nor epochs
COLUMNS = r"(\w+=[^=,]+(,\w+=[^=,]+)*)?"
Seed = Annotated[int, Range(0, 2**32 - 1, "not be negative, and be below 2**32")]
Sample = Annotated[int, Range(0, 2**16, "be between 0 and 65536")]
Mode = Annotated[str, OneOf(choices.MESH_MODES), REORDERS_SUMS]
ContextAttention = Annotated[str, OneOf(choices.CONTEXT_ATTENTIONS), REORDERS_SUMS]
ExpertDispatch = Annotated[str, OneOf(choices.EXPERT_DISPATCHES), REORDERS_SUMS]
Columns = Annotated[
    str, lambda value: "" if re.fullmatch(COLUMNS, value) else "must be like text=body,label=class."
]
Tracker = Annotated[str, Plugin("trackers")]
Axis = Annotated[
    int, Range(-1, MAX_INT32, "be positive, or -1 for all devices that are left"), REORDERS_SUMS
]
Path = Annotated[Place, MAY_CHANGE]
DataPath = Annotated[DataPlace, MAY_CHANGE]


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Record):
    name: Annotated[str, OneOf(choices.TOKENIZERS)] = "byte_bpe"  # bytes is not trained
    path: Path = ""  # a tokenizer.json or a sentencepiece model to use instead
    vocab_size: Size = 8192  # size of a trained tokenizer
    min_count: Count = 0  # of `words`: those that occur less often in the text are unknown
    add: tuple[Annotated[str, is_token], ...] = ()  # more tokens, which texts spell as they are
    # what a decoder's documents begin with: published, what the tokenizer's file puts before texts;
    # or end, nothing. Each ends with the end-of-text token
    frame: Annotated[str, OneOf(("published", "end"))] = "published"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_count and self.name != "words":
            raise ConfigError(
                f"min_count={self.min_count}: counts the words of name='words'; for {self.name}"
                " set 0."
            )

    @property
    def training(self) -> tuple[str | int, ...]:
        """The fields that decide a trained tokenizer beside its text."""
        if self.name == "words":
            return self.name, self.vocab_size, self.min_count
        return self.name, self.vocab_size


def required_head(objective: Any, skeleton: str) -> str:
    """Returns the head that an objective trains in a model with this skeleton; "" for any."""
    if isinstance(objective.head, str):
        return objective.head
    return objective.head[skeleton]


def is_object(value: str) -> str:
    """Checks that a text is empty or a JSON object."""
    try:
        if isinstance(json.loads(value or "{}"), dict):
            return ""
    except (ValueError, RecursionError):
        pass
    return 'must be a JSON object, such as {"enable_thinking": false}.'


@dataclass(frozen=True, kw_only=True)
class ChatConfig(Record):
    # of the chat template, for all rows, such as {"enable_thinking": false}
    variables: Annotated[str, is_object] = ""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Record):
    # files, folders, patterns or datasets of the Hub: text, jsonl, tables or token ids; empty:
    # `corpus`
    path: DataPath = ""
    # texts by name, with weights, instead of `path`
    mixture: dict[str, SourceConfig] = field(default_factory=Sections)
    # T: weights times size ** (1 / T); 0: sizes do not count
    mixture_temperature: NotNegative = 0.0
    # by steps, such as "9000: books=3; 9500-9900: web=0"
    mixture_schedule: Annotated[str, is_schedule] = ""
    eval_path: DataPath = ""  # held-out text, or rows of a table; empty: a share of `path`
    # of a table, by their roles, such as text=body,label=class; those of usual names are found
    columns: Columns = ""
    drop_incomplete: bool = False  # leaves out rows of a table without a label or text
    # the field of each jsonl line, or column, to read; pairs have "source" and "target"
    text_field: str = "text"
    # built in: Python, English, or pairs of both
    corpus: Annotated[str, OneOf(choices.CORPORA)] = "stdlib_code"
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    length: Size = 128  # T, tokens an example
    # T of the decoder in sequence-to-sequence objectives; 0: what the objective needs
    target_length: Count = 0
    # share of the text, or of the rows of a table, held out: by a hash of each, or of few documents
    # the end
    eval_fraction: Share = 0.02
    # tokenized records, by content hash
    cache: Annotated[Path, is_given] = "~/.cache/flaxformer_lite"

    def __post_init__(self) -> None:
        super().__post_init__()
        # ConfigDict's order
        object.__setattr__(self, "mixture", Sections(sorted(self.mixture.items())))
        check_mixture(self)
        if self.text_field != "text" and not self.path and not self.mixture:
            raise ConfigError(
                f"data.text_field={format_value(self.text_field)}: applies to your own jsonl or"
                " tables only; set data.path to them."
            )

    @property
    def held_out(self) -> float:
        """The share of the text at `path` that is held out: none, if other text is."""
        return 0.0 if self.eval_path else self.eval_fraction


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Record):
    # a file in flaxformer_lite/training/optimizers, or module:make
    name: Annotated[str, Plugin("optimizers", later=True)] = "adamw"
    learning_rate: Positive = 3e-4  # the peak
    schedule: Annotated[str, OneOf(choices.SCHEDULES)] = "cosine"  # of the learning rate
    warmup_steps: Count = 100  # linear, from 0 to the peak; 0: warmup_share
    warmup_share: Probability = 0.0  # of all steps, where warmup_steps is 0
    decay_steps: Count = 0  # length of wsd's final decay; 0: a tenth of train.steps
    final_fraction: NotNegative = 0.1  # of the peak, at the last step (cosine, linear, wsd)
    b1: Probability = 0.9  # decay of the mean of gradients
    b2: Probability = 0.95  # decay of the mean of their squares
    eps: NotNegative = 1e-8  # added to the root of that mean, against division by zero
    weight_decay: NotNegative = 0.1  # on matrices only, never on norms, biases or position tables
    clip_norm: NotNegative = 1.0  # largest global norm of the gradient; 0: off
    # patterns (re.search) of the paths of parameters that stay
    freeze: tuple[Annotated[str, is_pattern], ...] = ()
    # "pattern=factor": of the rate, for paths that match (re.search)
    rates: tuple[Annotated[str, is_rate], ...] = ()
    # factor of the rate per layer, downwards
    layer_decay: Annotated[float, Range(1e-6, 1, "be in (0, 1]")] = 1.0
    # decay of the average of the weights that is evaluated and published; 0: off
    ema: Probability = 0.0

    def warmup(self, steps: int) -> int:
        """Returns the steps of the warmup of a run of `steps`."""
        return self.warmup_steps or round(self.warmup_share * steps)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Record):
    steps: Count = 0  # updates in total, including those before a resume; 0: by epochs, or 1000
    epochs: NotNegative = 0.0  # passes over the training examples, instead of steps; 0: off
    batch_size: Size = 32  # sequences per step, over all devices and microbatches
    accumulate: Size = 1  # microbatches per step
    # computes the texts of a batch of labelled rows side by side in packed rows, without padding
    packing: Annotated[bool, REORDERS_SUMS] = True
    # the logits of one chunk exist at a time; 1 holds all of B x T x V
    loss_chunks: Annotated[Size, REORDERS_SUMS] = 4
    log_every: Annotated[Size, MAY_CHANGE] = 20  # steps from one record to the next
    # steps from one evaluation to the next; 0: once an epoch
    eval_every: Annotated[Count, MAY_CHANGE] = 200
    # at most; the held-out text may be shorter; 0: all
    eval_batches: Annotated[Count, MAY_CHANGE] = 20
    # steps from one checkpoint to the next; 0: once an epoch
    checkpoint_every: Annotated[Count, MAY_CHANGE] = 200
    keep: Annotated[Size, MAY_CHANGE] = 3  # number of newest checkpoints to keep
    # the evaluation's metric by which the best weights are kept as well, in best/; empty: none are
    best: str = ""
    # evaluations without a better `best` after which the run ends; 0: off
    patience: Annotated[Count, MAY_CHANGE] = 0
    # length of the sample text written at each evaluation, for decoders
    sample_tokens: Annotated[Sample, MAY_CHANGE] = 0
    # optimizations for XLA:CPU (nn/functions/tuning.py); they change no number
    cpu_tuning: Annotated[bool, MAY_CHANGE] = True
    # START:STOP, the first and last step of a profiler's trace; empty: none
    profile: Annotated[str, is_interval, MAY_CHANGE] = ""
    # minutes without the end of a step after which all stacks are printed; 0: never
    watchdog: Annotated[NotNegative, MAY_CHANGE] = 10.0
    # what shows the records elsewhere
    trackers: Annotated[tuple[Tracker, ...], MAY_CHANGE] = ()
    # skips updates whose loss or gradient is this many standard deviations high, such as 6; 0: none
    skip_spikes: NotNegative = 0.0
    # a model directory or workdir to take model, weights and tokenizer from; empty: random
    init_from: ModelPlace = ""
    # what becomes of frozen weights that come from there: "reference" reads them there at every
    # start, "copy" keeps them once in the workdir; empty: copy if init_from is a workdir
    base: Annotated[str, OneOf(choices.BASES), MAY_CHANGE] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps and self.epochs:
            raise ConfigError(
                f"train.steps={self.steps}, train.epochs={self.epochs:g}: both set the length of"
                " the run; set one of them to 0."
            )
        if not self.epochs:
            object.__setattr__(self, "steps", self.steps or DEFAULT_STEPS)
        if self.steps and self.profiled.stop > self.steps + 1:
            raise ConfigError(
                f"train.profile={self.profile!r}, train.steps={self.steps}: must end with the run."
            )
        if self.patience and not self.best:
            raise ConfigError(
                f"train.patience={self.patience}: waits for a better metric; name it:"
                " train.best=loss."
            )
        if self.batch_size % self.accumulate:
            raise ConfigError(
                f"train.batch_size={self.batch_size}, train.accumulate={self.accumulate}: the batch"
                " must be a multiple of the microbatches."
            )

    @property
    def profiled(self) -> range:
        """The steps of `profile`."""
        first, _, last = self.profile.partition(":")
        return range(int(first), int(last) + 1) if first else range(0)


@dataclass(frozen=True, kw_only=True)
class MeshConfig(Record):
    """The number of devices along each axis; one of them may be -1, for all that are left."""

    data: Axis = -1  # copies of the weights, over all slices
    fsdp: Axis = 1  # splits the batch and the weights
    expert: Axis = 1  # splits the batch and the experts of a mixture
    context: Axis = 1  # splits the sequence
    tensor: Axis = 1  # splits heads, feed-forward width and vocabulary
    # whether `data` splits the weights that `fsdp` splits, too, between their uses; without
    # model.remat a weight is kept for the backward pass as it was gathered over data
    shard_over_data: Annotated[bool, REORDERS_SUMS] = False
    # parts of `data` joined by a data-center network, such as TPU slices
    slices: Annotated[Size, REORDERS_SUMS] = 1
    # how rows that `context` splits meet their keys: gathered whole, part by part around a ring, or
    # whole again with the heads split instead
    context_attention: ContextAttention = "gather"
    # how tokens meet the experts that `expert` has on other devices: all tokens are gathered, or
    # each is sent to the devices that have its experts
    expert_dispatch: ExpertDispatch = "gather"
    # or shard_map, pmap: data parallelism written by hand, with the same numbers
    mode: Mode = "jit"

    def __post_init__(self) -> None:
        super().__post_init__()
        axes = ("data", "fsdp", "expert", "context", "tensor")
        sizes = {axis: getattr(self, axis) for axis in axes}
        if 0 in sizes.values() or list(sizes.values()).count(-1) > 1:
            raise ConfigError(f"mesh={sizes}: sizes must be positive, except that one may be -1.")
        if self.data > 0 and self.data % self.slices:
            raise ConfigError(
                f"mesh.data={self.data}, mesh.slices={self.slices}: data must be a multiple of the"
                f" slices; try mesh.data={-(-self.data // self.slices) * self.slices}."
            )
        split = [axis for axis in axes[1:] if sizes[axis] != 1]
        if self.shard_over_data and (self.mode != "jit" or self.slices > 1):
            raise ConfigError(
                f"mesh.shard_over_data=True, mesh.mode={self.mode!r}, mesh.slices={self.slices}:"
                " weights are gathered over data for every use, under jit and within a slice; set"
                " mesh.shard_over_data=False, or mesh.mode=jit and mesh.slices=1."
            )
        if self.mode != "jit" and split:
            named = ", ".join(f"mesh.{axis}={sizes[axis]}" for axis in split)
            raise ConfigError(
                f"mesh.mode={self.mode!r}, {named}: this mode splits the batch only; set the other"
                " axes to 1, or mesh.mode=jit."
            )


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Record):
    seed: Seed = 0  # seeds the parameters, dropout and the order of examples
    model: ModelConfig
    objective: Any = field(metadata={"plugin": "objectives"})
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    # Whether directories that the experiment reads (init_from, a teacher) may name plug-ins that
    # it does not name itself; set by the caller who reads it, never by a config page.
    allow_plugins: bool = field(
        default=False, compare=False, repr=False, metadata={"internal": True}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        objective = plugin_name(self.objective)
        check_family(model, "model.")
        if model.skeleton not in self.objective.skeletons:
            raise ConfigError(
                f"model.family={model.family!r}, objective.name={objective!r}: the objective is for"
                f" {' and '.join(self.objective.skeletons).replace('_', '-')} models, the"
                f" family's skeleton is {model.skeleton.replace('_', '-')}; change either."
            )
        head = required_head(self.objective, model.skeleton)
        if head not in ("", model.head):
            raise ConfigError(
                f"model.head={model.head!r}: {objective} trains {head!r}; set model.head={head}."
            )
        if model.adapter is not None and not self.optimizer.freeze:
            frozen = replace(self.optimizer, freeze=(model.adapter.frozen,))
            object.__setattr__(self, "optimizer", frozen)  # so that the resolved config says it
        self._check_held()
        self._check_sizes()
        longest = max(self.data.length, self.data.target_length)
        if longest > model.max_length and model.has_position_table:
            way_out = f"shorten the examples or set model.max_length={longest}"
            if self.train.init_from:
                way_out = f"set data.length={model.max_length}"
            raise ConfigError(
                f"data.length={longest}, model.max_length={model.max_length}:"
                f" {plugin_name(model.position)} positions end there; {way_out}."
            )

    def _check_held(self) -> None:
        """Refuses to train matrices that are held in few bits."""
        form = self.model.quantize
        adapter = self.model.adapter
        if form == "none":
            return
        if adapter is None:
            raise ConfigError(
                f"model.quantize={form!r}: matrices in few bits are not trained; set"
                " model.adapter.name=lora, or train with model.matmul=int8 instead."
            )
        if type(adapter).initial_factors is not AdapterConfig.initial_factors:
            raise ConfigError(
                f"model.quantize={form!r}, model.adapter={type(adapter).__name__}: starts from"
                " matrices in floats; set model.adapter.name=lora."
            )

    def _check_sizes(self) -> None:
        """Rejects arrays larger than any machine can hold.

        Their shapes would overflow, or the run would hang before its first step.
        """
        model = self.model
        data = self.data
        width = {"model.d_model": model.d_model}
        rows = {"train.batch_size": self.train.batch_size}
        lengths = {"data.length": data.length}, {"data.target_length": data.target_length}
        inner = {"model.mlp_dim": model.mlp_dim}, {"model.decoder_mlp_dim": model.decoder_mlp_dim}
        tables = (
            "vocab_size",
            "decoder_vocab_size",
            "type_vocab_size",
            "num_labels",
            "embedding_size",
        )
        heads = {"model.num_heads": model.num_heads, "model.head_dim": model.head_width}
        positions = {}
        if model.has_position_table:
            positions = {"model.max_length": model.max_length}
        weights = [width | size for size in (*inner, heads, positions)]
        weights += [width | {f"model.{name}": getattr(model, name)} for name in tables]
        products = []
        for length in lengths:
            products.append((rows | length, MOST_TOKENS))
            for wide in (width, *inner, heads):
                products.append((rows | length | wide, MOST_NUMBERS))
        products += [(sizes, MOST_WEIGHTS) for sizes in weights]
        for sizes, most in products:
            if math.prod(filter(None, sizes.values())) > most:
                listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
                raise ConfigError(
                    f"{listed}: their product exceeds what any machine can hold ({most:.0e}); lower"
                    " one of them."
                )
