"""Two processes that start again, with all that the first start left in caches, end bit for bit
alike.

XLA:CPU loses part of the order of collectives when it stores a program (runs/start/setup.py),
and which programs show it is a matter of chance: hence many, of one device a process and of four.
That such processes keep no programs is checked in tests/runs/test_two_processes.py.
"""

import pytest

from tests.runs import launched
from tests.training import tiny_runs

pytestmark = pytest.mark.nightly
SPLIT = {"train.accumulate": 2}
PROGRAMS = {
    "plain": (1, {}),
    "best and ema": (
        1,
        {**SPLIT, "optimizer.ema": 0.9, "train.best": "loss", "train.eval_every": 2},
    ),
    "spikes": (1, {**SPLIT, "train.skip_spikes": 4.0, "optimizer.schedule": "cosine"}),
    "lora": (
        1,
        {
            **SPLIT,
            "model.adapter.name": "lora",
            "model.adapter.rank": 2,
            "model.adapter.targets": "('query','value')",
        },
    ),
    "scanned layers": (1, {**SPLIT, "model.decoder_layers": 2, "model.scan": True}),
    "chunks of the loss": (1, {**SPLIT, "train.loss_chunks": 2, "model.remat": "full"}),
    "fsdp": (1, {**SPLIT, "mesh.data": 1, "mesh.fsdp": 2}),
    "tensor": (1, {**SPLIT, "mesh.data": 1, "mesh.tensor": 2}),
    "context": (1, {**SPLIT, "mesh.data": 1, "mesh.context": 2}),
    "shard_map": (1, {**SPLIT, "mesh.mode": "shard_map"}),
    "four devices each": (4, {**SPLIT, "train.batch_size": 16}),
    "four devices each, three axes": (4, {**SPLIT, "mesh.fsdp": 2, "mesh.tensor": 2}),
}
STEPS = 4


def run(folder, name, devices, settings):
    """Returns the digests of the end of a run by two processes."""
    settings = {
        "train.steps": STEPS,
        "train.checkpoint_every": 2,
        "optimizer.schedule": "constant",
        **settings,
    }
    port = launched.free_port()
    with launched.pair(folder, folder / name, settings, port, devices=devices) as started:
        ended = launched.outputs(started)
    assert [code for _, _, code in ended] == [0, 0], ended
    return launched.digests(folder / name, STEPS)


def check(folder, devices, settings):
    cold = run(folder, "cold", devices, settings)
    assert run(folder, "warm", devices, settings) == cold
    assert not list(folder.rglob("*-cache")), "no compiled program is kept"


def test_of_microbatches(tmp_path):
    check(tmp_path, 1, SPLIT)


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_other_programs(tmp_path, name):
    check(tmp_path, *PROGRAMS[name])


def test_of_a_mixture(tmp_path):
    path = tiny_runs.text(tmp_path)
    sources = {f"data.mixture.{name}.path": path for name in ("a", "b")}
    check(tmp_path, 1, {**SPLIT, "data.path": "", **sources})
