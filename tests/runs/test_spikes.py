"""An update that is a spike leaves no trace but in the count, in every mode; otherwise nothing
changes."""

import dataclasses
import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite import sharding
from flaxformer_lite.checkpoints.digest import digest
from flaxformer_lite.config import MeshConfig, OptimizerConfig
from flaxformer_lite.runs.callbacks.spikes import IN_A_ROW, Spikes
from flaxformer_lite.runs.errors import RunError
from flaxformer_lite.runs.report.metrics import Recorder
from flaxformer_lite.training import optimizer, spikes, state, step
from flaxformer_lite.training.average import evaluated_params
from tests.training import toy

CFG = OptimizerConfig(learning_rate=1e-2, warmup_steps=4, schedule="linear", ema=0.9)


@dataclasses.dataclass(frozen=True)
class Spiky(toy.NextToken):
    """Multiplies the loss by a factor in the batch."""

    def loss(self, outputs, targets, *, chunks):
        sums = super().loss(outputs, targets, chunks=chunks)
        factor = jnp.max(targets["factor"]).astype(jnp.float32)
        return sums._replace(loss={"weights": sums.loss["weights"] * factor})


def batch(seed, factor=1.0):
    made = toy.batch(8, seed)
    big = np.full(8, 0 if np.isnan(factor) else factor, np.int32)
    if np.isnan(factor):
        made["targets"]["weights"][0, 0] = np.nan
    return {**made, "targets": {**made["targets"], "factor": big}}


def build(skip, *, accumulate=1, axis_name=None):
    tx = optimizer.build(CFG, 20, skip_spikes=skip)
    options = {"dropout_key": None, "accumulate": accumulate, "chunks": 1, "axis_name": axis_name}
    rate = optimizer.schedule(CFG, 20)
    fn = step.train_step(toy.features(toy.Toy()), Spiky(), tx, rate, **options)
    return fn, jax.jit(lambda: state.create(toy.init, tx))()


@functools.cache
def compiled(skip):
    fn, at = build(skip)
    return jax.jit(fn), at


@pytest.mark.parametrize("known", [0, 63, 64, 100, 128])
def test_a_spike_is_so_many_deviations_above_the_mean(known):
    rng = np.random.default_rng(known)
    values = rng.normal(3, 0.5, known).astype(np.float32)
    past = np.full(spikes.WINDOW_UPDATES, np.nan, np.float32)
    past[rng.permutation(spikes.WINDOW_UPDATES)[:known]] = values
    edge = statistics.fmean(values) + 4 * statistics.pstdev(values) if known >= 64 else np.inf
    for now in (2.0, edge - 0.01, edge + 0.01, 1e9):
        for xp in (np, jnp):
            found = spikes.is_spike(xp.asarray(past), xp.float32(now), 4.0, xp)
            assert bool(found) == (now > edge or now == np.inf)
    for now in (np.nan, np.inf, -np.inf):
        assert spikes.is_spike(past, np.float32(now), 4.0)


def test_a_left_out_update_is_as_if_the_step_had_not_been():
    left_out = {3, 4, 7}

    def ran(numbers):
        fn, at = compiled(6.0)
        rates = []
        for number in numbers:
            at, told = fn(at, batch(number, np.nan if number in left_out else 1.0))
            assert float(told["skipped"]) == (number in left_out)
            rates += [float(told["learning_rate"])] * (number not in left_out)
        return at, rates

    with_, rates = ran(range(9))
    without, due = ran([number for number in range(9) if number not in left_out])
    assert rates == due, "the schedule counts the updates that were made"
    assert digest(with_.params) == digest(without.params)
    # the average counts each weight once
    assert digest(evaluated_params(with_)) == digest(evaluated_params(without))
    assert optax.tree.get(with_.opt_state, "left_out") == 3 and with_.step == without.step + 3


def test_the_average_before_the_first_update_is_the_weights():
    fn, at = compiled(6.0)
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    for number, factor in enumerate((np.nan, 1.0)):
        at, _ = fn(at, batch(number, factor))
        jax.tree.map(close, evaluated_params(at), at.params)


@pytest.mark.nightly
def test_without_a_spike_nothing_changes():
    states = []
    for fn, at in (compiled(6.0), compiled(0.0)):
        for number in range(3):
            at, told = fn(at, batch(number))
        states.append((at.params, told["grad_norm"]))
    # two programs: XLA of jax 0.12 fuses their updates differently
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), *states)
    assert "skipped" not in told


def test_a_large_loss_is_left_out_once_there_are_enough_to_compare_with():
    fn, at = compiled(6.0)
    seen = []
    for number in range(70):
        at, told = fn(at, batch(number, {10: 3, 66: 1000, 67: 500}.get(number, 1)))
        seen.append(float(told["skipped"]))
    # the second is not compared with the first, beside which it would be small
    assert [number for number, skipped in enumerate(seen) if skipped] == [66, 67]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["shard_map", "pmap"])
def test_all_devices_leave_out_the_same(mode):
    mesh = sharding.build_mesh(MeshConfig(data=2, mode=mode))
    fn, at = build(6.0, axis_name=None if mode == "jit" else sharding.DATA, accumulate=2)
    shardings = sharding.state_shardings(jax.eval_shape(lambda: at), toy.RULES, mesh)
    fn = sharding.jit_step(fn, shardings, mesh, mode)
    at = jax.device_put(at, shardings)
    before = digest(at.params)
    at, told = fn(at, sharding.place_batch(batch(0, np.nan), mesh))
    assert told["skipped"] == 1 and digest(at.params) == before
    at, told = fn(at, sharding.place_batch(batch(1), mesh))
    assert told["skipped"] == 0 and digest(at.params) != before and np.isfinite(told["loss"])


def test_spikes_are_told_and_too_many_in_a_row_end_the_run(tmp_path):
    said = []
    recorder = Recorder(tmp_path, -1)
    rows = ["a.txt:3", "b.txt:5"]
    watcher = Spikes(lambda step: rows, "runs/a", recorder, said.append)
    high = {"loss": 90.0, "grad_norm": 1.0}
    for number in range(1, 100):
        usual = {"loss": 3.0 + number % 2, "grad_norm": 1.0}
        watcher.step_done(number, high if number == 80 else usual, None)
    (line,) = said
    told = "loss 90, gradient norm 1; its rows are from a.txt:3, b.txt:5; "
    assert line.startswith(f"notice: step 80 is a spike: {told}")
    assert "steps --workdir runs/a --at 80 --run shows the loss of each" in line
    assert recorder.of("spike") == [{"step": 80, "split": "spike", **high, "rows": rows}]
    # as at a resume
    again = Spikes(lambda step: [], "runs/a", recorder, said.append, **watcher.remembered())
    again.step_done(100, high, None)
    assert said.pop().startswith("notice: step 100 is a spike") and len(said) == 1
    left_out = {"loss": 3.0, "grad_norm": np.nan, "skipped": 1.0}
    many = f"updates of {IN_A_ROW} steps.* skipped, up to step 115.*skip_spikes"
    with pytest.raises(RunError, match=many):
        for number in range(100, 200):
            watcher.step_done(number, left_out, None)
