"""The model under verification: its inputs, its outputs and its programs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.contrib.verify.finding import is_float
from flaxformer_lite.inference.own_model import wrap_own_module
from flaxformer_lite.models.skeletons.family_model import FamilyModel
from flaxformer_lite.nn.modules.layout import stack_layers, unstack_layers
from flaxformer_lite.types import Array, Params

TEXT_TOKENS = 24  # tokens of a text
RESERVED_POSITIONS = (
    4  # positions of a table at most, before the first that a text has (RoBERTa, BART)
)
WINDOW_TOKENS = 5  # tokens of a sliding window, so that a text is longer
OF_TOKENS = ("last_hidden_state", "logits", "start_logits", "end_logits", "prediction_logits")
OF_TEXTS = ("pooler_output", "text_embeds", "logits")  # of two axes
SPECIAL = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "dropped_token_id")

# Parts that read padding or other texts as the published ones do, and how.
ROOM = "tokens read together share the room of an expert, padding and neighbors too"
PUBLISHED = {
    "block_sparse": "blocks and random links are counted in columns, padding among them",
    "local_global": "the blocks of the global tokens are counted in columns, padding among them",
    "siglip_text_model": "the vector of a text is read in the last column, padding or not",
}

Inputs = dict[str, np.ndarray]


class Outputs(NamedTuple):
    """The arrays of a model's output by field: of tokens [B, T, ...] and of texts [B, D]."""

    tokens: dict[str, Array]
    texts: dict[str, Array]

    def of_row(self, row: int, columns: slice) -> tuple[list[Array], list[Array]]:
        """Returns the values of some tokens of a row, and of its text."""
        of_tokens = [value[row, columns] for value in self.tokens.values()]
        return of_tokens, [value[row] for value in self.texts.values()]


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model in float32 without dropout, its parameters, and the seed of all texts.

    Attributes:
      model: a model of a family, or a linen module that maps ids [B, T] to logits [B, T, V].
      cfg: its config; of a module of one's own the few fields that are known.
      params: its parameters.
      seed: the seed.
      length: tokens of a text.
      is_causal: whether no token may see later ones; None if the author has not said it.
    """

    model: Any
    cfg: Any  # ModelConfig | OwnConfig; `checks.py` gives only the former to checks of families
    params: Params
    seed: int
    length: int
    is_causal: bool | None

    @property
    def reads_source(self) -> bool:
        """Whether a decoder reads the encoder's output."""
        has_both = self.cfg.encoder_layers and self.cfg.decoder_layers
        return bool(has_both) and self.cfg.head not in self.model.encoder_heads

    @property
    def written(self) -> str:
        """The name of the ids that outputs belong to."""
        return "decoder_input_ids" if self.reads_source else "input_ids"

    @property
    def known_reason(self) -> str:
        """Why the published model reads what it should not; "" if it does not."""
        if not all(part.reads_one_token for part in self.cfg.feed_forwards):
            return ROOM
        known = PUBLISHED.keys() & {self.cfg.family, *self.cfg.mixer_names}
        return PUBLISHED[known.pop()] if known else ""

    def draw(self, rows: int, number: int = 0) -> np.ndarray:
        """Draws texts, int32 [rows, length], without special tokens; the last ends each of them."""
        special = [getattr(self.cfg, name, None) or 0 for name in SPECIAL]
        allowed = np.setdiff1d(np.arange(1, self.cfg.vocab_size), special)
        ids = np.random.default_rng([self.seed, number]).choice(allowed, (rows, self.length))
        end = getattr(self.cfg, "eos_token_id", None)
        if end is not None and end < self.cfg.vocab_size:
            ids[:, -1] = end
        return ids.astype(np.int32)

    def inputs(self, ids: np.ndarray, number: int = 0, **more: np.ndarray) -> Inputs:
        """Returns the inputs for texts; a decoder that reads them writes a text of its own."""
        inputs = {"input_ids": ids, **more}
        if self.reads_source:
            target = self.draw(1, 100 + number)
            inputs["decoder_input_ids"] = np.repeat(target, len(ids), axis=0)
        return inputs

    def apply(self, params: Params, inputs: Mapping[str, Array]) -> Outputs:
        """Returns the values that are compared, by the field of the model's output."""
        rest = dict(inputs)
        # by place, as a module of one's own may call its ids as it likes
        output = self.model.apply({"params": params}, rest.pop("input_ids"), **rest)
        outputs = Outputs({}, {})
        for name in OF_TOKENS + OF_TEXTS:
            value = getattr(output, name, None)
            if value is not None and name in OF_TEXTS and value.ndim == 2:
                outputs.texts[name] = value
            elif value is not None:
                outputs.tokens[name] = value
        if not outputs.tokens and not outputs.texts:
            outputs.tokens["logits"] = output
        return outputs

    @functools.cached_property
    def program(self) -> Callable[[Params, Inputs], Outputs]:
        return jax.jit(self.apply)

    def run(self, inputs: Inputs) -> Outputs:
        return jax.device_get(self.program(self.params, inputs))

    @functools.cached_property
    def _step(self) -> Callable:
        def loss(params: Params, inputs: Inputs, keep_BT: Array) -> tuple[jax.Array, Outputs]:
            outputs = self.apply(params, inputs)
            return jnp.where(keep_BT, token_losses(outputs), 0).sum(), outputs

        return jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True))

    def gradients(self, inputs: Inputs, keep_BT: np.ndarray) -> tuple[Outputs, Params]:
        """Returns the outputs, and the gradients of a loss over the tokens that are kept."""
        (_, outputs), gradients = self._step(self.params, inputs, keep_BT)
        return jax.device_get((outputs, gradients))

    def with_config(self, **changes: Any) -> "Subject":
        """Returns the same weights in a model with other fields, scanned or not.

        Raises:
          ConfigError: the model cannot run so.
        """
        cfg = dataclasses.replace(self.cfg, **changes)
        params = dict(unstack_layers(self.params))
        if cfg.scan and not cfg.share_layers:
            for side, kinds in (("encoder", cfg.kinds), ("decoder", cfg.of_decoder.kinds)):
                if side in params:
                    params[side] = stack_layers(params[side], len(kinds))
        model = self.model.clone(cfg=cfg)
        return dataclasses.replace(self, model=model, cfg=cfg, params=params)


def token_losses(outputs: Outputs) -> jax.Array:
    """Returns a smooth function of each token's values, float32 [B, T]."""
    total = jnp.float32(0)
    for value in outputs.tokens.values():
        waves = jnp.sin(value.astype(jnp.float32))
        total += waves.reshape(*value.shape[:2], -1).sum(axis=-1)
    return total


def build_subject(model: nn.Module, params: Params, seed: int, causal: bool | None) -> Subject:
    """Prepares a model for verification.

    Raises:
      ConfigError: there is nothing in it that could be checked.
    """
    if not isinstance(model, FamilyModel):
        own = wrap_own_module(model, params).cfg
        return Subject(model, own, params, seed, own.max_length or TEXT_TOKENS, causal)
    cfg = model.cfg.without_width_rule
    if cfg.skeleton == "embedding":
        raise ConfigError(f"verify: {cfg.family} has no layers, and so none of the properties.")
    head = "none" if cfg.head == "multiple_choice" else cfg.head  # a text is a row
    pad = cfg.pad_token_id
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
        **short_windows(cfg),
    )
    longest = TEXT_TOKENS
    span = cfg.position.span(cfg.max_length)
    if span is not None:
        longest = span.stop - RESERVED_POSITIONS
        if longest < 2:
            raise ConfigError(
                f"verify: a table of {span.stop} positions is too short; needs"
                f" {RESERVED_POSITIONS + 2}."
            )
    is_causal = cfg.decoder_layers > 0 or head == "causal_lm"
    if cfg.skeleton == "encoder_decoder":
        is_causal = head not in getattr(model, "encoder_heads", ())
    wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32) if is_float(x) else x, params)
    whole = model.clone(cfg=cfg).tuned()
    return Subject(whole, cfg, wide, seed, min(longest, TEXT_TOKENS), is_causal)


def short_windows(cfg: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a config with sliding windows of WINDOW_TOKENS tokens at most."""
    fields: dict[str, Any] = {}
    for name in ("windows", "decoder_windows"):
        fields[name] = tuple(min(window, WINDOW_TOKENS) for window in getattr(cfg, name))
    for name in ("pattern", "decoder_pattern"):
        kinds = getattr(cfg, name)
        fields[name] = tuple(
            dataclasses.replace(kind, window=kind.window and min(kind.window, WINDOW_TOKENS))
            for kind in kinds
        )
    return fields
