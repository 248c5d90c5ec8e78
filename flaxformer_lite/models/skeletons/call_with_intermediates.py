"""Attention weights and hidden states as fields of a model's output, as in transformers."""

import re
from collections import defaultdict

import flax.linen as nn
import jax
from jax.typing import ArrayLike

from flaxformer_lite.models.skeletons.outputs import Output
from flaxformer_lite.nn.modules import interceptors

STATE = re.compile(r"(?:(encoder|decoder)_)?embed|(encoder|decoder)/layer_(\d+)")
WEIGHTS = re.compile(r"(encoder|decoder)/layer_(\d+)/(cross_)?\w+/weights")


def call_inside(
    model: nn.Module, attentions: bool, hidden_states: bool, *args: ArrayLike, **inputs: object
) -> Output:
    """Calls a bound model with taps, and adds the requested values to its output.

    Args:
      model: bound, so within `apply`; while it is initialized, nothing is added.
      attentions, hidden_states: what to add.
      *args, **inputs: arguments of the call.
    """
    if model.is_initializing():
        return model(*args, **inputs)
    wanted = (WEIGHTS,) * attentions + (STATE,) * hidden_states

    def wants(name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in wanted)

    tap = interceptors.Taps(wants, {})
    scope = model.scope
    assert scope is not None, "a bound model has one"
    # the same dropout as without taps
    rngs = {name: rng.as_jax_rng() for name, rng in scope.rngs.items()}
    call = interceptors.apply(
        model.clone(parent=None),
        model.variables,
        tap,
        *args,
        rngs=rngs,
        mutable=scope.mutable,
        **inputs,
    )
    output, values, state = call
    for collection, variables in state.items():  # such as what layers have sown for the loss
        if not scope.is_mutable_collection(collection):
            continue
        for name, value in variables.items():
            model.put_variable(collection, name, value)
    return output.replace(**_fields(output, values))


def _fields(output: Output, values: dict[str, jax.Array]) -> dict[str, tuple]:
    """Returns the fields of the output that values belong to, in the order of the layers.

    The last hidden state is the model's.
    """
    by_field: dict[str, list[tuple[int, jax.Array]]] = defaultdict(list)
    both = output.encoder_last_hidden_state is not None
    for name, value in values.items():
        side = ""
        layer = "-1"
        cross = None
        field = "hidden_states"
        weights = WEIGHTS.fullmatch(name)
        state = STATE.fullmatch(name)
        if weights:
            field = "attentions"
            side, layer, cross = weights.groups()
        elif state:
            side = state[1] or state[2]
            layer = state[3] or "-1"
        if cross:
            field = "cross_attentions"
        elif both:
            field = f"{side}_{field}"
        by_field[field].append((int(layer), value))
    fields: dict[str, tuple] = {}
    for field, rows in by_field.items():
        rows.sort(key=lambda row: row[0])
        fields[field] = tuple(value for _, value in rows)
    for field in fields:
        if field.endswith("hidden_states"):
            last = output.last_hidden_state
            if field.startswith("encoder"):
                last = output.encoder_last_hidden_state
            fields[field] = (*fields[field][:-1], last)
    return fields
