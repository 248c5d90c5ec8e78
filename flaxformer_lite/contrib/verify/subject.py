"""The model under verification: its inputs, its outputs and its programs."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from flaxformer_lite.config import ConfigError, LayerKind, ModelConfig
from flaxformer_lite.contrib.verify.finding import is_gradient
from flaxformer_lite.inference.own_model import wrap_own_module
from flaxformer_lite.models.parameter_shapes import parameter_shapes
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.pretrained.lazy_params import stored_tree
from flaxformer_lite.pretrained.place_params import place_params
from flaxformer_lite.pretrained.tensor_names import by_layer
from flaxformer_lite.types import Array, Params

LENGTH = 24  # tokens of a text
RESERVED = 4  # positions of a table at most, before the first that a text has (RoBERTa, BART)
SHORT = 5  # tokens of a sliding window, so that a text is longer
# what is compared: values of tokens, and below values of texts
OF_TOKENS = ("last_hidden_state", "logits", "start_logits", "end_logits", "prediction_logits")
OF_TEXTS = ("pooler_output", "text_embeds", "logits")
SPECIAL = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "dropped_token_id")

# Parts that read padding or other texts as the published ones do, and how.
ROOM = "tokens read together share the room of an expert, padding and neighbors too"
PUBLISHED = {
    "block_sparse": "blocks and random links are counted in columns, padding among them",
    "local_global": "the blocks of the global tokens are counted in columns, padding among them",
    "siglip_text_model": "the vector of a text is read in the last column, padding or not",
}

Inputs = dict[str, np.ndarray]
Outputs = dict[str, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model in float32 without dropout, its parameters, and the seed of all texts.

    Attributes:
      model: a model of a family, or a linen module that maps ids [B, T] to logits [B, T, V].
      params: its parameters.
      seed: the seed.
      vocab_size: ids are below it.
      length: tokens of a text.
      is_causal: whether no token may see later ones; None if the author has not said it.
    """

    model: Any
    params: Params
    seed: int
    vocab_size: int
    length: int
    is_causal: bool | None

    @property
    def cfg(self) -> ModelConfig:
        """The config of a model of a family.

        Raises:
          ConfigError: it is a module of one's own.
        """
        if not self.is_family:
            raise ConfigError(f"{type(self.model).__name__} is not a model of a family.")
        return self.model.cfg

    @property
    def is_family(self) -> bool:
        return isinstance(self.model, FamilyModel)

    @property
    def reads_source(self) -> bool:
        """Whether a decoder reads the encoder's output."""
        if not self.is_family or self.cfg.skeleton != "encoder_decoder":
            return False
        return self.cfg.head not in self.model.encoder_heads

    @property
    def known_reasons(self) -> tuple[()] | tuple[str, bool]:
        """Why the published model reads what it should not, and True; () if it does not."""
        if not self.is_family:
            return ()
        if any(not part.reads_one_token for part in self.cfg.feed_forwards):
            return (ROOM, True)
        for name in (self.cfg.family, *self.cfg.mixer_names):
            if name in PUBLISHED:
                return (PUBLISHED[name], True)
        return ()

    @property
    def written(self) -> str:
        """The name of the ids that outputs belong to."""
        if self.reads_source:
            return "decoder_input_ids"
        return "input_ids"

    @property
    def writes(self) -> bool:
        """Whether it is a language model that `generate` takes."""
        if not self.is_family:
            return self.is_causal is True
        return self.cfg.decoder_layers > 0 and self.cfg.head == "lm"

    def check_takes(self, *names: str) -> None:
        """Raises a ConfigError if a module of one's own lacks an argument."""
        parameters = inspect.signature(type(self.model).__call__).parameters
        for name in names:
            if not self.is_family and name not in parameters:
                raise ConfigError(f"{type(self.model).__name__} takes no {name}.")

    def draw(self, rows: int, number: int = 0) -> np.ndarray:
        """Draws texts, int32 [rows, length], without special tokens; the last ends each of them."""
        allowed = np.arange(1, self.vocab_size)
        end = None
        if self.is_family:
            end = self.cfg.eos_token_id
            allowed = np.setdiff1d(allowed, [getattr(self.cfg, name) or 0 for name in SPECIAL])
        rng = np.random.default_rng([self.seed, number])
        ids = rng.choice(allowed, (rows, self.length)).astype(np.int32)
        if end is not None and end < self.vocab_size:
            ids[:, -1] = end
        return ids

    def inputs(self, ids: np.ndarray) -> Inputs:
        """Returns the inputs for texts; a decoder that reads them writes them again."""
        if self.reads_source:
            return {"input_ids": ids, "decoder_input_ids": np.roll(ids, 1, axis=1)}
        return {"input_ids": ids}

    def segments(self, segment_ids: np.ndarray) -> Inputs:
        """Returns the inputs that name the document of each token."""
        if self.reads_source:
            return {"segment_ids": segment_ids, "decoder_segment_ids": segment_ids}
        return {"segment_ids": segment_ids}

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        """Returns the values that are compared, by the field of the model's output."""
        rest = dict(inputs)
        # by place, as a module of one's own may call its ids as it likes
        output = self.model.apply({"params": params}, rest.pop("input_ids"), **rest)
        fields = {}
        for name in (*OF_TOKENS, *OF_TEXTS):
            value = getattr(output, name, None)
            if value is not None:
                fields[name] = value
        return fields or {"logits": output}

    @functools.cached_property
    def program(self) -> Callable[[Params, Inputs], Outputs]:
        return jax.jit(self.apply)

    def run(self, inputs: Inputs) -> Outputs:
        return jax.device_get(self.program(self.params, inputs))

    @functools.cached_property
    def _step(self) -> Callable:
        def loss(params: Params, inputs: Inputs, keep_BT: Array) -> tuple[jax.Array, Outputs]:
            outputs = self.apply(params, inputs)
            total = jnp.float32(0)
            for value in of_tokens(outputs).values():
                keep = keep_BT.reshape(*keep_BT.shape, *(1,) * (value.ndim - 2))
                total += jnp.where(keep, jnp.sin(value.astype(jnp.float32)), 0).sum()
            return total, outputs

        return jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True))

    def gradients(self, inputs: Inputs, keep_BT: np.ndarray) -> tuple[Outputs, Params]:
        """Returns the outputs, and the gradients of a loss over the tokens that are kept."""
        (_, outputs), gradients = self._step(self.params, inputs, keep_BT)
        return jax.device_get(outputs), jax.device_get(gradients)

    def by_layer(self, tree: Params) -> dict[str, Array]:
        """Returns the arrays of a tree of parameters by path, each layer's by itself."""
        arrays = {}
        for path, (leaf, index) in by_layer(self.cfg, flatten_dict(tree, sep="/")).items():
            if index:
                leaf = leaf[index]
            arrays[path] = leaf
        return arrays

    def with_config(self, changes: Params) -> "Subject":
        """Returns the same weights in a model with other fields, scanned or not.

        Raises:
          ConfigError: the model cannot run so.
        """
        cfg = dataclasses.replace(self.cfg, **changes)
        model = self.model.clone(cfg=cfg)
        params = self.params
        if cfg.scan != self.cfg.scan:
            layers = {path: np.asarray(x) for path, x in self.by_layer(params).items()}
            shapes = parameter_shapes(model)
            params = place_params(
                cfg, stored_tree(cfg, shapes, lambda path: layers[path].__getitem__)
            )
        return dataclasses.replace(self, model=model, params=params)

    def with_short_windows(self) -> "Subject":
        """Returns the model with sliding windows of SHORT tokens in place of longer ones."""
        changes = {}
        for side in ("", "decoder_"):
            windows = getattr(self.cfg, f"{side}windows")
            changes[f"{side}windows"] = tuple(min(window, SHORT) for window in windows)
            kinds = getattr(self.cfg, f"{side}pattern")
            changes[f"{side}pattern"] = tuple(map(_shorten_window, kinds))
        return self.with_config(changes)


def _shorten_window(kind: LayerKind) -> LayerKind:
    if not kind.window:
        return kind
    return dataclasses.replace(kind, window=min(kind.window, SHORT))


def of_tokens(outputs: Outputs) -> Outputs:
    """Returns the outputs with a value for each token."""
    tokens = {}
    for name, value in outputs.items():
        if name in OF_TOKENS and (name != "logits" or value.ndim == 3):
            tokens[name] = value
    return tokens


def build_subject(model: nn.Module, params: Params, seed: int, causal: bool | None) -> Subject:
    """Prepares a model for verification.

    Raises:
      ConfigError: there is nothing in it that could be checked.
    """
    if not isinstance(model, FamilyModel):
        own = wrap_own_module(model, params).cfg
        return Subject(model, params, seed, own.vocab_size, own.max_length or LENGTH, causal)
    cfg = model.cfg.without_width_rule
    if cfg.skeleton == "embedding":
        raise ConfigError(f"verify: {cfg.family} has no layers, and so none of the properties.")
    head = cfg.head
    pad = cfg.pad_token_id
    if head == "multiple_choice":
        head = "none"  # a text is a row
    if head == "sequence_classification":
        pad = pad or 0  # where a decoder's text ends
    cfg = dataclasses.replace(
        cfg,
        head=head,
        pad_token_id=pad,
        dropout=0.0,
        dtype="float32",
        param_dtype="float32",
        matmul="float",
        cache="float",
        remat="none",
    )

    def widen(x: jax.Array) -> jax.Array:
        if is_gradient(x):
            return jnp.asarray(x, jnp.float32)
        return x

    longest = LENGTH
    span = cfg.position.span(cfg.max_length)
    if span is not None:
        longest = span.stop - RESERVED
        if longest < 2:
            raise ConfigError(
                f"verify: a table of {span.stop} positions is too short; needs {RESERVED + 2}."
            )
    is_causal = cfg.decoder_layers > 0 or head == "causal_lm"
    if cfg.skeleton == "encoder_decoder":
        is_causal = head not in getattr(model, "encoder_heads", ())
    return Subject(
        model.clone(cfg=cfg).tuned(),
        jax.tree.map(widen, params),
        seed,
        cfg.vocab_size,
        min(longest, LENGTH),
        is_causal,
    )
