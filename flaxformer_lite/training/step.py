"""The pure steps of training and evaluation.

Training is (state, batch) -> (state, metrics), evaluation (params, batch) -> sums.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.config import ConfigError
from flaxformer_lite.objectives.sums import LOAD, Loss, LossSums, token_weight, weight_sums
from flaxformer_lite.training import spikes
from flaxformer_lite.training.optimizer import are_floats, global_norm, norm_of_leaves
from flaxformer_lite.training.state import TrainState
from flaxformer_lite.types import Batch, Params, Tree

MOST_LOADS = 512  # with more experts than this in the model, their loads are not metrics each
# the model's outputs, which the objective's loss reads, and auxiliary losses by name
Computed = tuple[Any, dict[str, jax.Array]]
Outputs = Callable[[Params, Mapping[str, jax.Array], jax.Array | None], Computed]
IsTrained = Callable[[Params], list[bool]]


def train_step(
    outputs: Outputs,
    objective: Loss,
    tx: optax.GradientTransformation,
    rate: Callable[[jax.Array], jax.Array],
    *,
    dropout_key: jax.Array | None,
    accumulate: int,
    chunks: int,
    axis_name: str | None = None,
    compares_rows: bool = False,
    is_trained: IsTrained = are_floats,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """Builds the training step.

    The loss is sum / weight over the whole batch, for any number of microbatches.

    Args:
      outputs: function of (params, inputs, dropout key or None). It returns the input of the
        objective's loss, and auxiliary losses by name; names `load/...` are the number of tokens
        that chose each expert of a layer, [X].
      objective: the objective; it returns sums, never means.
      tx: the update rule, from training/optimizer.py.
      rate: the schedule, only for the metrics.
      dropout_key: a key for the whole run, folded with the step; None turns dropout off.
      accumulate: number of microbatches; rows r, r + accumulate, ... form one, so that no row
        leaves its device.
      chunks: chunks of a microbatch; the logits of one exist at a time.
      axis_name: a mapped axis (shard_map, pmap) over which the batch is split; dropout is then
        independent on each device. None if the step sees the whole batch, as under jit.
      compares_rows: whether the loss compares all rows of the batch with each other, and is no sum
        over microbatches or over the devices of `axis_name`; see `_whole_batch`.
      is_trained: function from parameters to whether each leaf has a gradient, by default all that
        are floating.

    Returns:
      A function of (state, batch); metrics are float32 scalars on the device: loss, the objective's
      metrics, grad_norm (before clipping), param_norm (after the update) and learning_rate;
      skipped, 1 or 0, if `tx` skips spikes.
    """

    def sum_over_axis(sums: Tree) -> Tree:
        if not axis_name:
            return sums
        return jax.lax.psum(sums, axis_name=axis_name)

    loss_sums: Callable = functools.partial(objective.loss, chunks=chunks)
    if compares_rows and axis_name:
        loss_sums = _of_all_devices(loss_sums, axis_name)
    if compares_rows and accumulate > 1:
        gradients = functools.partial(_whole_batch, outputs, loss_sums, is_trained)
    else:
        gradient = functools.partial(_gradient, outputs, loss_sums, is_trained)
        gradients = functools.partial(_accumulate, gradient)

    def key_of(step: jax.Array) -> jax.Array | None:
        if dropout_key is None:
            return None
        key = jax.random.fold_in(dropout_key, step)
        if axis_name:
            # Without it, all devices would drop the same units of their different rows.
            key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        return key

    def mean_gradients(state: TrainState, batch: Batch) -> tuple[Params, LossSums]:
        key = key_of(state.step)
        # Before the gradients, which weigh the auxiliary losses of a microbatch by the tokens of
        # the whole batch.
        totals = sum_over_axis(weight_sums(batch["targets"]))
        partial = gradients(state.params, batch, totals, key, accumulate)
        grads, sums = sum_over_axis(partial)
        # Divided once, after all sums, so that microbatches and devices with few targets do not
        # count more.
        scale = 1 / token_weight(totals)
        return jax.tree.map(lambda g: g * scale, grads), sums

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        grads, sums = mean_gradients(state, batch)
        # Read before tx.update, which counts this step.
        skipped_before = spikes.skip_count(state.opt_state)  # None if `tx` does not skip spikes
        spike_inputs = {}
        updates_before = state.step
        if skipped_before is not None:
            spike_inputs = {
                "loss": sums.mean(),
                "grad_norm": global_norm(grads),
            }
        updates, opt_state = tx.update(grads, state.opt_state, state.params, **spike_inputs)
        # A bfloat16 weight and its float32 update are added in float32.
        with jax.numpy_dtype_promotion("standard"):
            params = optax.apply_updates(state.params, updates)
        if skipped_before is not None:
            # The optimizer's own schedule counts applied updates only, as a skipped one leaves its
            # state alone.
            updates_before = updates_before - skipped_before
        metrics = {
            **_scalars(sums.means()),
            "grad_norm": global_norm(grads),
            "param_norm": norm_of_leaves(_partition(params, are_floats(params))),
            "learning_rate": rate(updates_before),
        }
        skipped = spikes.skip_count(opt_state)
        if skipped_before is not None and skipped is not None:
            metrics["skipped"] = skipped - skipped_before
        metrics = jax.tree.map(lambda m: m.astype(jnp.float32), metrics)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    return step


def _scalars(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Splits the load of experts into scalars, one for each expert.

    If the model has more than MOST_LOADS experts, keeps only the largest and smallest of a layer.
    """
    few = sum(value.size for value in metrics.values() if value.ndim) <= MOST_LOADS
    scalars: dict[str, jax.Array] = {}
    for name, value in metrics.items():
        if not value.ndim:
            scalars[name] = value
        elif few:
            for expert, load in enumerate(value):
                scalars[f"{name}/{expert}"] = load
        else:
            scalars |= {f"{name}/most": value.max(), f"{name}/least": value.min()}
    return scalars


def _gradient(
    outputs: Outputs,
    loss_sums: Callable,
    is_trained: IsTrained,
    params: Params,
    microbatch: Batch,
    totals: dict[str, jax.Array],
    key: jax.Array | None,
) -> tuple[Params, LossSums]:
    """Computes float32 gradients of a microbatch's share of the batch's loss, and its sums."""
    trained = is_trained(params)

    def loss(leaves: list[jax.Array]) -> tuple[jax.Array, LossSums]:
        out, extra_losses = outputs(_combine(params, trained, leaves), microbatch["inputs"], key)
        return _loss_of_sums(loss_sums(out, microbatch["targets"]), extra_losses, totals)

    (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(_partition(params, trained))
    return _gradient_tree(params, trained, grads), sums


def _partition(params: Params, chosen: Sequence[bool]) -> list[jax.Array]:
    """Lists the chosen leaves."""
    return list(itertools.compress(jax.tree.leaves(params), chosen))


def _combine(params: Params, chosen: Sequence[bool], leaves: Sequence[jax.Array]) -> Params:
    """Replaces the chosen leaves of the parameters, in the order of `_partition`."""
    rest = iter(leaves)
    combined = []
    for leaf, is_chosen in zip(jax.tree.leaves(params), chosen, strict=True):
        combined.append(next(rest) if is_chosen else leaf)
    return jax.tree.unflatten(jax.tree.structure(params), combined)


def _gradient_tree(
    params: Params, trained: Sequence[bool], gradients: Sequence[jax.Array]
) -> Params:
    """Returns the tree of float32 gradients, with a scalar zero for each leaf that has none."""
    # A bfloat16 sum over microbatches would lose every gradient that is small beside the sum.
    wide = [gradient.astype(jnp.float32) for gradient in gradients]
    # Scalars, as zeros of the shape of a frozen leaf would take memory for nothing.
    zeros = jax.tree.map(lambda _: jnp.zeros((), jnp.float32), params)
    return _combine(zeros, trained, wide)


def _loss_of_sums(
    sums: LossSums, extra_losses: dict[str, jax.Array], totals: dict[str, jax.Array]
) -> tuple[jax.Array, LossSums]:
    """Returns the scalar to differentiate, and the sums extended by auxiliary losses and loads."""
    # Checked here, as what a plug-in's loss returns is known only once it is traced.
    if not isinstance(sums, LossSums):
        raise ConfigError(
            f"the objective's loss returned {type(sums).__name__}: must return LossSums, as"
            " objectives/sums.py's token_loss makes them."
        )
    weights = totals
    losses = {}
    loads = {}
    for name, value in extra_losses.items():
        if name.startswith(LOAD):
            loads[name] = value
        else:
            losses[name] = value
    if losses:
        weights = {**totals, **dict.fromkeys(losses, totals[sums.anchor])}
        sums = sums.with_auxiliary(losses)
    sums = sums.with_loads(loads)
    return sums.times_tokens(weights), sums


def _of_all_devices(loss_sums: Callable, axis_name: str) -> Callable:
    """Wraps a loss that compares rows, so that it compares the rows of all devices.

    Each device computes the loss of all rows and divides it by the number of devices. The weights
    are those of the device's own rows, as its auxiliary losses are weighted by them.
    """

    def gathered(tree: Tree) -> Tree:
        return jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name, tiled=True), tree)

    def share_of(out: Tree, targets: Mapping[str, jax.Array]) -> LossSums:
        devices = jax.lax.axis_size(axis_name)
        sums = loss_sums(gathered(out), gathered(targets))
        # Every device has the same sums, and the psum in train_step adds them up again.
        share = jax.tree.map(lambda x: x / devices, sums)
        of_device = weight_sums(targets)
        return share._replace(weight={term: of_device[term] for term in sums.weight})

    return share_of


def _whole_batch(
    outputs: Outputs,
    loss_sums: Callable,
    is_trained: IsTrained,
    params: Params,
    batch: Batch,
    totals: dict[str, jax.Array],
    key: jax.Array | None,
    accumulate: int,
) -> tuple[Params, LossSums]:
    """Computes the gradient of a loss that compares all rows, and its sums.

    The activations of one microbatch exist at a time. The outputs of all microbatches are computed
    first, then the gradient of the loss with respect to these outputs. Then each microbatch is
    computed again, with the same dropout, to propagate that gradient to the parameters.

    Reference: Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
    setup" (arXiv:2101.06983).
    """

    def cut(x: jax.Array) -> jax.Array:
        return _microbatches(x, accumulate)

    def forward(params: Params, index: jax.Array, inputs: Mapping[str, jax.Array]) -> Computed:
        return outputs(params, inputs, _key_of_microbatch(key, index))

    def loss(cached: Computed) -> tuple[jax.Array, LossSums]:
        out, extra_losses = cached
        # Undoes `cut`: the targets are still in the batch's own order of rows.
        joined = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), out)
        sums = loss_sums(joined, batch["targets"])
        means = {}
        if extra_losses:
            weight_KL = cut(batch["targets"][sums.anchor]).reshape(accumulate, -1)
            # 1e-30: a batch without targets has zero weights here, not NaN.
            weight_K = weight_KL.sum(axis=1) / jnp.maximum(weight_KL.sum(), 1e-30)
            for name, value in extra_losses.items():
                if name.startswith(LOAD):
                    means[name] = value.sum(axis=0)
                else:
                    means[name] = jnp.sum(value * weight_K)
        return _loss_of_sums(sums, means, totals)

    indices = jnp.arange(accumulate, dtype=jnp.int32)
    inputs = jax.tree.map(cut, batch["inputs"])
    cached = jax.lax.map(lambda item: forward(params, *item), (indices, inputs))
    (_, sums), cotangents = jax.value_and_grad(loss, has_aux=True)(cached)

    trained = is_trained(params)
    leaves = _partition(params, trained)

    def body(
        so_far: Params, item: tuple[jax.Array, Mapping[str, jax.Array], Computed]
    ) -> tuple[Params, None]:
        index, inputs, cotangent = item
        _, pullback = jax.vjp(
            lambda leaves: forward(_combine(params, trained, leaves), index, inputs), leaves
        )
        (grads,) = pullback(cotangent)
        return jax.tree.map(jnp.add, so_far, _gradient_tree(params, trained, grads)), None

    zeros = _gradient_tree(params, trained, [jnp.zeros(x.shape, jnp.float32) for x in leaves])
    return jax.lax.scan(body, zeros, (indices, inputs, cotangents))[0], sums


def eval_step(
    outputs: Outputs, objective: Loss, *, chunks: int
) -> Callable[[Params, Batch], tuple[LossSums, dict[str, jax.Array]]]:
    """Builds the evaluation step, without dropout.

    Returns:
      A function (params, batch) -> (sums, the objective's predictions).
    """

    # Not named `step`, so that a profile distinguishes it from the training step.
    def evaluate(params: Params, batch: Batch) -> tuple[LossSums, dict[str, jax.Array]]:
        out = outputs(params, batch["inputs"], None)[0]
        return objective.loss(out, batch["targets"], chunks=chunks), objective.predictions(out)

    return evaluate


def _accumulate(
    gradient: Callable,
    params: Params,
    batch: Batch,
    totals: dict[str, jax.Array],
    key: jax.Array | None,
    accumulate: int,
) -> tuple[Params, LossSums]:
    """Adds up (gradients, sums) of microbatches in a loop; one's activations exist at a time."""
    if accumulate == 1:
        return gradient(params, batch, totals, key)

    def body(so_far, item):
        index, microbatch = item
        added = gradient(params, microbatch, totals, _key_of_microbatch(key, index))
        return jax.tree.map(jnp.add, so_far, added), None

    microbatches = jax.tree.map(lambda x: _microbatches(x, accumulate), batch)
    first = jax.tree.map(lambda x: x[0], microbatches)
    # The carry's form is traced, since only the objective knows the names of its sums.
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(gradient, params, first, totals, key))
    return jax.lax.scan(body, zeros, (jnp.arange(accumulate, dtype=jnp.int32), microbatches))[0]


def _key_of_microbatch(key: jax.Array | None, index: jax.Array) -> jax.Array | None:
    if key is None:
        return None
    return jax.random.fold_in(key, index)


def _microbatches(x: jax.Array, accumulate: int) -> jax.Array:
    """Splits the rows [B, ...] into microbatches [accumulate, B / accumulate, ...]."""
    # Not reshape(accumulate, -1): a device holds neighboring rows, and would have to send them
    # away.
    return jnp.swapaxes(x.reshape(x.shape[0] // accumulate, accumulate, *x.shape[1:]), 0, 1)
