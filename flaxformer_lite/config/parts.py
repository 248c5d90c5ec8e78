"""Records that the modules of a model are built from.

A layer's mixer and feed-forward are plug-ins.
"""

import abc
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    TypedDict,
    Unpack,
)

from flaxformer_lite.config import choices
from flaxformer_lite.config.execution import Execution
from flaxformer_lite.config.rules import (
    ConfigError,
    Count,
    NotNegative,
    OneOf,
    Positive,
    Record,
    Size,
    is_pattern,
    raise_if_invalid,
)

if TYPE_CHECKING:  # --help does not wait for jax
    import flax.linen as nn
    import jax
    from jax.typing import DTypeLike

Patterns = tuple[Annotated[str, is_pattern], ...]
# (regex of a parameter's path, mesh axes of its last dimensions)
PartitionRules = tuple[tuple[str, tuple], ...]


class WhereItDivides(NamedTuple):
    """An axis of a mesh that splits a dimension only if its size divides the dimension's.

    Otherwise the dimension is not split over that axis.
    """

    axis: str


@dataclass(frozen=True, kw_only=True)
class InitConfig(Record):
    """The distribution that weights start from.

    Attributes:
      kind: `normal`; `normal_residual`, which shrinks layers that write to the residual stream by 1
        / sqrt(2 layers) (Radford et al. 2019, GPT-2, section 2.3); `fan_in`, with stddev 1 /
        sqrt(inputs) (T5); or `xavier`, uniform within sqrt(6 / (inputs + outputs)) (Glorot and
        Bengio 2010).
      stddev: standard deviation of the two normal kinds.
      layers: number of layers in the whole model, for `normal_residual`.
      width_ratio: the model's width by its base's, by whose root the two normal kinds shrink
        (`model.width_rule`); tables and heads over the vocabulary do not.
    """

    kind: Annotated[str, OneOf(choices.INITS)] = "normal"
    stddev: NotNegative = 0.02
    layers: Size = 1
    width_ratio: Positive = 1.0


@dataclass(frozen=True, kw_only=True)
class NormConfig(Record):
    """A norm over the last axis.

    It is `layer`, `layer_no_bias` (ModernBERT), `layer_no_affine`, which has no weights (OLMo),
    `rms`, `rms_offset`, which stores scale - 1 as its weight (Gemma), or `rms_no_affine`.

    Attributes:
      kind: as above.
      eps: added to the variance or mean square.
      weight_axes: number of trailing axes of the input that the weights have; 2 gives each head
        weights of its own.
    """

    kind: Annotated[str, OneOf(choices.NORMS)] = "layer"
    eps: NotNegative = 1e-6
    weight_axes: Size = 1


class Part(Record):
    """Base class of the plug-in records that make up a layer.

    Attributes:
      name: the module's name in a layer, and so in the paths of its parameters.
      added: patterns of the paths of parameters that the standard part lacks, so that published
        weights do not hold them.
      low_precision: the fields of few bits that it computes: `matmul` and `quantize` if all its
        matrices are of class Einsum, and `cache` if its cache is one of attention.
      outward: the Einsum that writes the part's output, if generation may hold its matrix in
        another order (`prepare_weights`).
    """

    name: ClassVar[str] = "part"
    added: ClassVar[tuple[str, ...]] = ()
    low_precision: ClassVar[tuple[str, ...]] = ()
    outward: ClassVar[str] = ""

    def for_model(self, standard: "Part") -> Self:
        """Returns the record to use inside a model, by default itself.

        Args:
          standard: the part that the model's config describes and this one replaces; a wrapper
            keeps it.
        """
        return self

    @property
    def joinable(self) -> tuple[str, ...]:
        """The layers that multiply the part's input, and may be one (nn/modules/joined.py)."""
        return ()

    def copied_from(self, path: str) -> str:
        """Names the parameter of the standard part that this one starts from.

        It is one that lacks the leading axis of the parameter at `path`, along which it is
        repeated; "" or `path` itself if there is none.
        """
        return ""

    def partition_rules(self) -> PartitionRules:
        """Returns the mesh axes of the parameters; by default each stays whole on every device."""
        return ((rf"/{self.name}/", ()),)


class TableSizes(TypedDict, total=False):
    """The sizes that the tables of a position encoding depend on, and how they are drawn."""

    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    initial: InitConfig


class StackCall(TypedDict):
    """The options that a stack passes to the mixers that prepare its context.

    Attributes:
      causal: whether each token sees only itself and earlier ones.
      tables: declares a position encoding's learned arrays in the stack: `tables(encoding,
        **sizes)`; a `role` names a second set of them, such as `global_position`.
    """

    causal: bool
    tables: "Callable[..., dict[str, jax.Array]]"


class MixerConfig(Part, abc.ABC):
    """Base class of records for layers that mix tokens, such as attention or a recurrent cell.

    Attributes:
      reads_source: whether it attends to an encoder's output itself, so that no cross-attention
        follows it.
      both_ways: whether each token sees later ones too, so that no decoder can have it.
      whole_rows: whether its result depends on the length of the row, padding included, so that
        rows are neither packed nor cut.
      knows_order: whether it reads tokens one after another, and so no position encoding.
    """

    name: ClassVar[str] = "mixer"
    reads_source: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = False
    knows_order: ClassVar[bool] = False

    @abc.abstractmethod
    def module(self, execution: Execution, *, causal: bool, name: str | None = None) -> "nn.Module":
        """Builds the linen module: (x [B, T, D], context, cache or None) -> y [B, T, D].

        With a cache, the module returns (y, cache).
        """

    def table_sizes(self, d_model: int) -> TableSizes:
        """Returns the sizes of a position encoding's tables, for mixers with a field `position`."""
        return {"d_model": d_model}

    def prepare(
        self,
        context: Any,  # nn/modules/context.py
        x_BTD: "jax.Array",
        execution: Execution,
        **options: Unpack[StackCall],
    ) -> Any:
        """Adds to the context what all layers of this kind share; called once per stack.

        Args:
          context: the stack's context.
          x_BTD: the stack's input.
          execution: how the stack runs.
          **options: `causal` and `tables`, see StackCall.
        """
        return context

    def init_cache(self, batch: int, length: int, d_model: int, dtype: "DTypeLike") -> Any:
        """Builds an empty cache for `length` positions."""
        raise ConfigError(
            f"{type(self).__name__}: has no cache, so it cannot generate token by token."
        )


class LayerScope(Protocol):
    """The calling linen module, in which an adapter declares its factors."""

    execution: Execution

    @property
    def path(self) -> tuple[str, ...]: ...

    def param(
        self, name: str, init_fn: "Callable[..., jax.Array]", /, *arguments: object
    ) -> Any: ...

    def has_rng(self, name: str) -> bool: ...


class AdaptedLayer(LayerScope, Protocol):
    """The `Einsum` whose kernel is adapted."""

    equation: str
    sizes: dict[str, int]


class FeedForwardConfig(Part, abc.ABC):
    """Base class of records for layers that treat each token by itself.

    Attributes:
      reads_context: whether its module takes the stack's context as a second argument, such as to
        leave padding out of an auxiliary loss.
      reads_one_token: whether the result of a token depends on no other token of the batch, so that
        rows may be packed or cut. A class of your own has to set it.
      differs_in_training: whether its module computes something else where it has a dropout key,
        which training steps pass then, whatever the rate of dropout.
    """

    name: ClassVar[str] = "mlp"
    reads_context: ClassVar[bool] = False
    reads_one_token: ClassVar[bool] = False
    differs_in_training: ClassVar[bool] = False

    @property
    def at_inference(self) -> Self:
        """The record with the usual values of all fields that only training reads."""
        return self

    @abc.abstractmethod
    def module(self, execution: Execution, *, name: str | None = None) -> "nn.Module":
        """Builds the linen module: x [B, T, D] -> [B, T, D].

        With `reads_context` it is (x, context) -> y.
        """


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Record, abc.ABC):
    """Base class of records for trained additions to the matrices of a frozen model.

    Attributes:
      factors: names of the parameters that stand beside an adapted kernel.
      targets: patterns (re.search) of the paths of the kernels to adapt, such as
        `decoder/layer_0/attention/query/kernel`.
      trained: patterns of the paths of the model's own parameters that are trained whole; none of
        them is adapted.
    """

    factors: ClassVar[tuple[str, ...]] = ()

    targets: Patterns = ("query", "value")
    trained: Patterns = ("^classifier/",)

    def adapts(self, path: str) -> bool:
        """Returns whether the kernel at this path is adapted."""
        return not self.trains(path) and matches_any(self.targets, path)

    def is_factor(self, path: str) -> bool:
        """Returns whether the parameter at this path is one of the adapter's own."""
        return path.rpartition("/")[2] in self.factors

    def adapts_table(self, path: str) -> bool:
        """Returns whether the table of the logits at this path is adapted.

        A pattern must name it; one that matches all matrices does not adapt it, like PEFT's
        `all-linear`.
        """
        module = path.rpartition("/")[0].rpartition("/")[2]
        naming = tuple(pattern for pattern in self.targets if module in pattern)
        return not self.trains(path) and matches_any(naming, path)

    def beside_table(
        self, layer: LayerScope, x: "jax.Array", kernel_VE: "jax.Array"
    ) -> "tuple[jax.Array, jax.Array]":
        """Widens features and the table of the logits so that their product is the adapted one.

        Args:
          layer: the `VocabHead`, which declares the factors by `layer.param`.
          x: features [..., E].
          kernel_VE: the table.
        """
        raise ConfigError(
            f"adapter.targets={self.targets}: of the adapters only lora adapts the table of the"
            " logits; leave it out."
        )

    def trains(self, path: str) -> bool:
        """Returns whether the model's own parameter at this path is trained whole."""
        return matches_any(self.trained, path)

    @property
    def frozen(self) -> str:
        """A pattern of the paths of all parameters that are not trained."""
        factors = [f"/{name}$" for name in self.factors]
        trained = "|".join((*factors, *self.trained))
        return f"^(?!.*({trained}))"

    def partition_rules(self) -> PartitionRules:
        """Returns the mesh axes of the factors; by default each stays whole on every device."""
        return ((rf"/({'|'.join(self.factors)})$", ()),)

    def check(self, paths: Iterable[str]) -> None:
        """Checks that each pattern of `targets` adapts a matrix of the model.

        The model has parameters at these paths.

        Raises:
          ConfigError: one of them does not; names the matrices of its layers.
        """
        adapted = []
        named = set()
        for path in paths:
            module, _, name = path.rpartition("/")
            if name == self.factors[0]:
                adapted.append(f"{module}/kernel")
            if name == "kernel" and "/layer" in module:
                named.add(module.rpartition("/")[2])
        for pattern in self.targets:
            if not matches_any((pattern,), *adapted):
                raise ConfigError(
                    f"adapter.targets={pattern!r}: matches the path of no matrix that can be"
                    f" adapted; those in layers are called {', '.join(sorted(named))}."
                )

    @abc.abstractmethod
    def apply(
        self,
        layer: AdaptedLayer,
        x: "jax.Array",
        kernel: "jax.Array",
        y: "jax.Array",
        bias: "jax.Array | None",
    ) -> "jax.Array":
        """Computes the output of an adapted layer, in the dtype of x.

        The product without the adapter is passed as `y`; an adapter that does not use it costs no
        second product, as the compiler leaves out what nothing reads.

        Args:
          layer: the `Einsum` that is adapted, which declares the factors by `layer.param`.
          x: the input of the layer.
          kernel: its matrix, with the summed axes first, as `layer.equation` names them.
          y: `einsum(layer.equation, x, kernel)`.
          bias: what the layer adds to y, of a shape that broadcasts; None if it has no bias.
        """

    def initial_factors(
        self, kernel: "jax.Array", factors: "tuple[jax.Array, ...]"
    ) -> "dict[str, jax.Array]":
        """Initializes the factors that depend on the pretrained kernel, by name; by default none.

        Args:
          kernel: the pretrained matrix, with the summed axes first.
          factors: the factors as a new model draws them, in the order of `factors`.
        """
        return {}

    @abc.abstractmethod
    def merged(
        self, kernel: "jax.Array", bias: "jax.Array | None", factors: "tuple[jax.Array, ...]"
    ) -> "tuple[jax.Array, jax.Array | None]":
        """Merges the factors into the kernel and the bias.

        Args:
          kernel: the matrix, with the summed axes first.
          bias: has the output axes of the kernel; None if the layer has no bias.
          factors: the factors of this kernel, in the order of the names in `factors`.
        """


def matches_any(patterns: Patterns, *paths: str) -> bool:
    """Returns whether any pattern is found in any of the paths."""
    return any(re.search(pattern, path) for pattern in patterns for path in paths)


@dataclass(frozen=True, kw_only=True)
class LayerConfig(Record):
    """One kind of layer: a mixer and a feed-forward, each y = out(x + branch(layer(in(x)))).

    `residual` may change that.

    Attributes:
      mixer: attention, or another plug-in of flaxformer_lite/nn/mixers; None leaves it out.
      cross: attention to an encoder's output, between the two; None if there is no encoder.
      feed_forward: a plug-in of flaxformer_lite/nn/feed_forwards; None leaves it out.
      extra_branch: a mixer that reads the input of the layer, x, and is added to its output, as the
        convolution of DeBERTa-v2; None leaves it out.
      after: another feed-forward, after the first one; None leaves it out.
      output_scale: whether the output is multiplied with a number of the file, which is not
        trained (Gemma 4).
      norm: the norm in the slots of `norm_at`.
      norm_at: `in` before each part, `branch` on its output before the residual is added, `out`
        after it is added; with the part's name in front (`attention_in`, `mlp_in`), the slot of
        that part only.
      residual: `sequential`; `none` adds no x, as in stacks of LSTMs; `parallel` adds mixer and
        feed-forward of the same input (GPT-NeoX); `parallel_shared` does so after one common norm
        (GPT-J).
      residual_multiplier: factor on the output of each part before x is added (Granite).
    """

    mixer: Annotated[MixerConfig, ", such as AttentionConfig"] | None
    cross: Annotated[MixerConfig, ", such as AttentionConfig"] | None = None
    feed_forward: Annotated[FeedForwardConfig, ", such as MlpConfig"] | None = None
    extra_branch: Annotated[MixerConfig, ", such as ConvolutionConfig"] | None = None
    after: Annotated[FeedForwardConfig, ", such as LayerInputConfig"] | None = None
    output_scale: bool = False
    norm: NormConfig = field(default_factory=NormConfig)
    norm_at: tuple[str, ...] = ("in",)
    residual: Annotated[str, OneOf(choices.RESIDUALS)] = "sequential"
    residual_multiplier: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        slots = choices.LAYER_NORM_SLOTS
        known = list(slots)
        for part in self.parts:
            known += [f"{part}_{slot}" for slot in slots]
        is_known = OneOf(tuple(known))
        for slot in self.norm_at:
            raise_if_invalid("norm_at", self.norm_at, is_known(slot))
        if self.residual.startswith("parallel") and (
            self.mixer is None
            or self.feed_forward is None
            or self.cross
            or self.extra_branch
            or self.after
        ):
            raise ConfigError(
                f"residual={self.residual!r}: needs a mixer and a feed-forward, and no"
                " cross-attention and nothing beside them; set residual=sequential."
            )

    @property
    def parts(self) -> dict[str, Part]:
        """The parts that the layer runs, in order, by the names of their modules."""
        named: dict[str, Part | None] = {"cross_attention": self.cross}
        if self.mixer is not None:
            named = {self.mixer.name: self.mixer, **named}
        if self.feed_forward is not None:
            named |= {self.feed_forward.name: self.feed_forward}
        if self.extra_branch is not None:
            named |= {self.extra_branch.name: self.extra_branch}
        if self.after is not None:
            named |= {self.after.name: self.after}
        return {name: part for name, part in named.items() if part is not None}

    def has_norm(self, part: str, slot: str) -> bool:
        """Returns whether the part of this name has a norm in this slot."""
        return slot in self.norm_at or f"{part}_{slot}" in self.norm_at


@dataclass(frozen=True, kw_only=True)
class StackConfig(Record):
    """A stack of layers.

    Attributes:
      num_layers: number of layers.
      pattern: the kinds of layer, repeated over the depth.
      final_norm: the norm after the last layer; None leaves it out.
      share: index of the weights that each layer uses: (0, 0, 0) shares one set (ALBERT); (): no
        sharing.
    """

    num_layers: Size
    pattern: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    share: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern:
            raise ConfigError("pattern=(): needs at least one kind of layer.")
        if self.share:
            self._check_share()

    def _check_share(self) -> None:
        if len(self.share) != self.num_layers:
            raise ConfigError(
                f"share={self.share}: needs one entry for each of the {self.num_layers} layers."
            )
        for layer, which in enumerate(self.share):
            if not 0 <= which <= layer:
                raise ConfigError(
                    f"share={self.share}: layer {layer} must use weights from 0 to {layer}, not"
                    f" {which}."
                )
            first = self.share.index(which)
            if self.pattern[self.kind(layer)] != self.pattern[self.kind(first)]:
                raise ConfigError(
                    f"share={self.share}: layers {first} and {layer} are of different kinds and"
                    " cannot use the same weights; give each kind its own."
                )

    def kind(self, layer: int) -> int:
        """Index in `pattern` of the layer at this depth."""
        return layer % len(self.pattern)

    def scans(self, execution: Execution) -> bool:
        """Returns whether layers are stacked over a leading axis instead of standing side by side.

        Raises:
          ConfigError: layers are stacked, but their number is not a multiple of the pattern.
        """
        if not execution.scan or self.share:
            return False
        check_scan(self.num_layers, len(self.pattern), "pattern")
        return True

    def partition_rules(self) -> PartitionRules:
        """Returns the rules of all parts, without duplicates."""
        kinds = self.pattern[: self.num_layers]
        parts = [part for layer in kinds for part in layer.parts.values()]
        rules = [rule for part in parts for rule in part.partition_rules()]
        if any(layer.output_scale for layer in kinds):
            rules.append((r"/output_scale$", ()))
        return tuple(dict.fromkeys(rules))


def check_scan(layers: int, kinds: int, named: str) -> None:
    """Checks that a scan leaves out no layer.

    A scan runs whole periods of the pattern that the field `named` sets.
    """
    if layers % kinds:
        raise ConfigError(
            f"scan=True, {named}: {layers} layers are no multiple of the pattern of {kinds}; set"
            " scan=False."
        )
