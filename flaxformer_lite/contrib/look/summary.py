"""The inside of a model on one text, as a record that pages are drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.look.position_tables import PositionTable, position_tables
from flaxformer_lite.contrib.look.token_losses import (
    ShownLosses,
    masked_losses,
    next_token_losses,
)
from flaxformer_lite.inference.inside.capture import capture, names_of
from flaxformer_lite.inference.inside.lens import (
    Lens,
    check_lens,
    hidden_names,
    read_states,
    running_stacks,
)
from flaxformer_lite.models.skeletons import build_layers
from flaxformer_lite.nn.feed_forwards.moe import ROUTER_BIAS, MoeConfig
from flaxformer_lite.nn.functions import masks
from flaxformer_lite.types import Params

CROSS = "cross_attention"
OWN = ("masked_lm", "pretraining")  # heads that predict the tokens that stand there, not the next


@dataclass(frozen=True)
class AttentionMaps:
    """The weights of attention in layers with equally many heads.

    Attributes:
      rows, columns: the sequences that attend and are attended to.
      weights_LNTS: float32; a row sums to one.
      visible_LTS: bool, what the layer's mask lets a row attend to.
    """

    name: str
    rows: str
    columns: str
    layers: tuple[int, ...]
    weights_LNTS: np.ndarray
    visible_LTS: np.ndarray


@dataclass(frozen=True)
class ExpertMaps:
    """The weights of a layer's experts for each token.

    Attributes:
      sequence: the tokens, of `encoder` or `decoder`.
      layer: its number.
      weights_XT: float32, the weight of the expert for the token; 0 where it does not read it.
    """

    sequence: str
    layer: int
    weights_XT: np.ndarray


@dataclass(frozen=True)
class Inside:
    """The record of what a model computes on one text.

    Attributes:
      sequences: ids of the tokens that the `encoder` and the `decoder` read.
      goals_T: what the last stack predicts at each place, -1 for nothing known: the next tokens or,
        in a masked LM, its own.
      attentions: one entry for each kind of attention; none if the model has no attention.
      lens: None if the model predicts no tokens.
      losses: None if no token is predicted.
      norms: L2 norms of the hidden states [layers + 1, T], the embeddings' first, for each
        sequence.
      experts: one entry for each layer with experts.
    """

    sequences: dict[str, np.ndarray]
    goals_T: np.ndarray
    attentions: list[AttentionMaps]
    lens: Lens | None
    losses: ShownLosses | None
    norms: dict[str, np.ndarray]
    positions: list[PositionTable]
    experts: list[ExpertMaps]


def look_inside(
    model: nn.Module,
    params: Params,
    ids: Sequence[int],
    target: Sequence[int] = (),
    *,
    top_k: int = 5,
    vocab_size: int | None = None,
    prefix: bool = False,
    mask_id: int | None = None,
    special: Sequence[int] = (),
) -> Inside:
    """Runs a model on one text and gathers what a page shows.

    Args:
      model: any model of the zoo.
      params: its parameters.
      ids: the text, with its special tokens.
      target: an encoder-decoder's answer; or a decoder's continuation of the text, whose tokens
        alone have a loss.
      top_k: tokens of the logit lens at each place.
      vocab_size: tokens of the tokenizer, as in `logit_lens`.
      prefix: whether the text is the prefix of a prefix LM, which sees itself both ways.
      mask_id: the mask token, for the losses of a masked LM.
      special: tokens that are no text, which a masked LM does not predict.
    """
    running = running_stacks(model)
    head = model.cfg.head
    if head in model.vocab_heads:
        check_lens(model, top_k, vocab_size)
    inputs, goals_T = _inputs(model, [*ids], [*target], prefix)
    sequences = {running[0]: inputs["input_ids"][0]}
    if len(running) == 2:
        sequences[running[1]] = inputs["decoder_input_ids"][0]
    known = names_of(model, inputs)
    weights = [name for name in known if name.endswith("/weights")]
    routers = [name for name in known if name.endswith("/mlp/router")]
    hidden = {side: hidden_names(model, side) for side in running}
    names = [*weights, *routers]
    for states in hidden.values():
        names += states.values()
    output, values = jax.jit(lambda params, inputs: capture(model, params, inputs, names))(
        params, inputs
    )
    norms = {}
    for side, states in hidden.items():
        norms[side] = _norms(side, {at: values[name] for at, name in states.items()})
    weights_by_name = {name: values[name] for name in weights}
    attentions = _attentions(model, weights_by_name, inputs.get("prefix_mask"))
    lens = losses = None
    if head in model.vocab_heads:
        lens = read_states(model, params, inputs, values, top_k, vocab_size)
        last_T = sequences[running[-1]]
        if head not in OWN:
            losses = next_token_losses(output, last_T, goals_T)
        elif mask_id is not None:
            losses = masked_losses(model, params, last_T, mask_id, special)
    positions = position_tables(model, params, max(map(len, sequences.values())))
    experts = [_experts(model, params, name, values[name]) for name in routers]
    return Inside(sequences, goals_T, attentions, lens, losses, norms, positions, experts)


def _inputs(
    model: nn.Module, ids: list[int], target: list[int], prefix: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns the arguments of the model, and the target at each position of its last stack.

    A target is -1 where none is known.
    """
    read = ids + target
    first = len(ids) if target else 1
    inputs = {"input_ids": read}
    if model.cfg.head in OWN:
        goals = read
    else:
        goals = [-1] * (first - 1) + read[first:] + [-1]
    if prefix:
        inputs["prefix_mask"] = [1] * len(ids) + [0] * len(target)
    if len(running_stacks(model)) == 2:
        starts = (model.cfg.decoder_start_token_id, model.cfg.pad_token_id, 0)
        start = next(token for token in starts if token is not None)
        inputs = {"input_ids": ids, "decoder_input_ids": [start, *target[:-1]]}
        goals = target
    arrays = {name: np.asarray([row], np.int32) for name, row in inputs.items()}
    return arrays, np.asarray(goals, np.int32)


def _norms(side: str, states: dict[str, jax.Array]) -> np.ndarray:
    norms = []
    for x_BTD in states.values():
        norms.append(np.linalg.norm(np.asarray(x_BTD, np.float32)[0], axis=-1))
    norms_LT = np.stack(norms)
    finite_L = np.isfinite(norms_LT).all(axis=1)
    if not finite_L.all():
        raise ConfigError(
            f"the {side}'s hidden states are NaN or infinite from its"
            f" {list(states)[int(np.argmin(finite_L))]} on: the weights have diverged, or are"
            " damaged."
        )
    return norms_LT


def _experts(model: nn.Module, params: Params, name: str, logits_BTX: jax.Array) -> ExpertMaps:
    """Returns which experts the logits of a router such as `decoder/layer_0/mlp/router` choose."""
    side, place, *_ = name.split("/")
    layer = int(place.removeprefix("layer_"))
    stack = build_layers.stack(model.cfg, side)
    kind = stack.kind(layer)
    moe = stack.pattern[kind].feed_forward
    assert isinstance(moe, MoeConfig), "no other layer has a router"
    bias_X = None
    if moe.router_bias_update_rate and place in params[side]:
        bias_X = params[side][place]["mlp"][ROUTER_BIAS]
    elif moe.router_bias_update_rate:
        stacked = params[side]["layers"][f"block_{kind}"]
        bias_X = stacked["mlp"][ROUTER_BIAS][layer // len(stack.pattern)]
    weights_TA, chosen_TA = (np.asarray(x)[0] for x in moe.route(logits_BTX, bias_X))
    weights_TX = np.zeros(logits_BTX.shape[1:], np.float32)
    np.put_along_axis(weights_TX, chosen_TA, weights_TA, axis=1)
    return ExpertMaps(side, layer, weights_TX.T)


def _attentions(
    model: nn.Module, weights: dict[str, jax.Array], prefix_BT: np.ndarray | None
) -> list[AttentionMaps]:
    """Groups weights such as `decoder/layer_0/attention/weights` by part and number of heads."""
    groups: dict[tuple[str, bool, int], dict[int, np.ndarray]] = {}
    for name, maps in weights.items():
        side, layer, part, _ = name.split("/")
        weights_NTS = np.asarray(maps, np.float32)[0]
        by_layer = groups.setdefault((side, part == CROSS, len(weights_NTS)), {})
        by_layer[int(layer.removeprefix("layer_"))] = weights_NTS
    made = []
    for (side, cross, heads), layers in sorted(
        groups.items(), key=lambda item: (item[0][0] == "decoder", item[0][1])
    ):
        name = "decoder to encoder (cross-attention)" if cross else f"{side} (self-attention)"
        if [key[:2] for key in groups].count((side, cross)) > 1:
            name = f"{name}, {heads} heads"
        weights_LNTS = np.stack(list(layers.values()))
        T, S = weights_LNTS.shape[2:]
        visible = []
        for number in layers:
            if cross:
                visible.append(np.ones((T, S), bool))
            else:
                visible.append(_visible(model, side, number, T, prefix_BT))
        columns = "encoder" if cross else side
        made.append(
            AttentionMaps(name, side, columns, tuple(layers), weights_LNTS, np.stack(visible))
        )
    return made


def _visible(
    model: nn.Module, side: str, layer: int, T: int, prefix_BT: np.ndarray | None
) -> np.ndarray:
    """Returns what a layer's mask shows of one text without padding, bool [T, T]."""
    stack = build_layers.stack(model.cfg, side)
    window = getattr(stack.pattern[stack.kind(layer)].mixer, "window", 0)
    causal = side == "decoder" or model.cfg.head == "causal_lm"
    shown = masks.causal() if causal else masks.full()
    if prefix_BT is not None:
        shown |= masks.prefix(jnp.asarray(prefix_BT))
    if window:
        ahead = 0 if causal else window - 1
        shown &= masks.window(window - 1, ahead)
    return np.asarray(shown.dense(T))[0]
