"""Two processes draw and reward their own prompts: equal to one process of two devices.

Of more devices, processes sum gradients in another order than one process does, so that the last
bits differ, as in any run.
"""

import shutil
import sys

import pytest

from flaxformer_lite.runs.report import metrics
from tests.runs import launched

STEPS = 4
# As a file, which each process reads: rewards and sizes of test_grpo.py.
PAGE = """
import dataclasses, pathlib
import sys
from flaxformer_lite.config import MeshConfig, to_config_dict
from tests.contrib.rl import test_grpo

def get_config():
    folder = pathlib.Path({folder!r})
    sys.path.append(str(folder))  # of a reward of the test
    rewards = (test_grpo.LIKES, {reward!r})
    cfg = test_grpo.config(folder, steps={steps}, updates=2, rewards=rewards)
    return to_config_dict(dataclasses.replace(cfg, mesh=MeshConfig(data=1, fsdp=2)))
"""
FAILING = """
import jax

called = []

def score(records):
    called.append(len(records))
    # Once it has been tried, and has judged the held-out answers of the start.
    if jax.process_index() == 1 and len(called) == 3:
        raise ValueError("the sandbox of this host is gone")
    return [0.5] * len(records)
"""


def run(folder, name, *, processes=2, reward="length", steps=STEPS):
    """Runs train.py; returns what its processes printed, and their codes."""
    page = folder / f"page_{name}.py"
    page.write_text(PAGE.format(folder=str(folder), reward=reward, steps=steps))
    line = [sys.executable, "train.py", f"--config={page}", f"--workdir={folder / name}"]
    if processes == 1:
        return launched.outputs([launched.start(line, devices=2)])
    joining = [f"--coordinator=127.0.0.1:{launched.free_port()}", "--num_processes=2"]
    started = []
    for index in range(processes):
        started.append(launched.start([*line, *joining, f"--process_id={index}"], devices=1))
    return launched.outputs(started)


def checked(ended):
    assert [code for _, _, code in ended] == [0] * len(ended), ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rl")
    checked(run(folder, "two"))
    return folder


def collected(workdir):
    return metrics.read_collected(workdir, range(1, STEPS + 1))


@pytest.mark.nightly
def test_answers_rewards_and_weights_are_those_of_one_process(folder):
    checked(run(folder, "one", processes=1))
    assert collected(folder / "two") == collected(folder / "one")
    ours, due = (launched.digests(folder / name, STEPS) for name in ("two", "one"))
    assert ours == due


@pytest.mark.nightly
def test_a_stopped_run_ends_bit_equal(folder):
    shutil.copytree(folder / "two", folder / "again")
    shutil.rmtree(folder / "again" / "checkpoints" / str(STEPS))
    checked(run(folder, "again"))
    assert collected(folder / "again") == collected(folder / "two")
    assert launched.digests(folder / "again", STEPS) == launched.digests(folder / "two", STEPS)


@pytest.mark.nightly
def test_a_reward_that_fails_on_one_host_ends_all_with_its_sentence(folder):
    (folder / "host_reward.py").write_text(FAILING)
    ended = run(folder, "failing", reward="host_reward:score")
    for _, err, code in ended:
        assert code == 1, err
        assert "raised ValueError: the sandbox of this host is gone" in err
