"""train.py itself, shrunken, in processes of its own, and the same run in this one."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest

import flaxformer_lite
from configs import gpt2_tiny
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.runs.start.adopt import read_experiment
from tests.runs.recorded import SEED
from tests.training import tiny_runs
from tools import faults

ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).with_name("recorded.py")
SETTINGS = {
    "seed": SEED,
    "data.length": 32,
    "data.eval_fraction": 0.1,
    "data.tokenizer.name": "bytes",
    "model.d_model": 16,
    "model.mlp_dim": 32,
    "model.decoder_layers": 1,
    "model.dropout": 0.1,
    "model.vocab_size": 0,
    "train.batch_size": 8,
    "train.log_every": 1,
    "train.eval_every": 1000,
    "train.eval_batches": 1,
    "train.sample_tokens": 0,
    "train.loss_chunks": 1,
}


def fields(folder, settings):
    """The fields of a run's config that are not its page's."""
    return {
        **SETTINGS,
        "data.path": str(tiny_runs.text(folder)),
        "data.cache": str(folder / "cache"),
        **settings,
    }


def command(folder, workdir, settings, *flags, ids=None):
    """A command line; with `ids`, a file that gets a line for each training example that is
    made."""
    overrides = [f"--config.{name}={value}" for name, value in fields(folder, settings).items()]
    program = [str(RECORDER), str(ids)] if ids else []
    own = [f"--workdir={workdir}", *overrides, *flags]
    return [sys.executable, *program, "train.py", "--config=configs/gpt2_tiny.py", *own]


def alone(folder, workdir, settings):
    """Runs the same in this process; returns the (position, row) of each training example that was
    made."""
    page = gpt2_tiny.get_config()
    made = []
    make = Dataset.example
    page.update_from_flattened_dict(fields(folder, settings))

    def noted(self, row, seed, position, *records):
        if seed == SEED:
            made.append((position, row))
        return make(self, row, seed, position, *records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "example", noted)
        flaxformer_lite.run(read_experiment(page), workdir)
    return made


def environment(devices):
    before = os.environ["XLA_FLAGS"]
    flag = "--xla_force_host_platform_device_count="
    kept = [word for word in before.split() if not word.startswith(flag)]
    # recorded.py lies in a folder of its own, and imports from the root.
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": " ".join([*kept, f"{flag}{devices}"]),
    }


def free_port():
    """Returns a port that no process listens on, below those that outgoing connections get."""
    known = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(known.read_text().split()[0]) if known.exists() else 32768
    while True:
        port = 10_000 + secrets.randbelow(max(1, first - 10_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def start(arguments, devices, **variables):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, cwd=ROOT, env=environment(devices) | variables, **pipes)


@contextlib.contextmanager
def pair(folder, workdir, settings, port, *flags, each=({}, {}), ids=(None, None), devices=2):
    """Two processes of some devices each; they are gone at the end of the block. What they compile
    they may keep in the folder."""
    flags = (f"--coordinator=127.0.0.1:{port}", "--num_processes=2", *flags)
    lines = []
    for i in (0, 1):
        own = {**settings, **each[i]}
        lines.append(command(folder, workdir, own, f"--process_id={i}", *flags, ids=ids[i]))
    kept = str(folder / "kept")
    started = [start(line, devices, FLAXFORMER_LITE_CACHE=kept) for line in lines]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def outputs(started):
    """[(stdout, stderr, exit code)] of processes that end by themselves, or are killed when they do
    nothing for long."""
    with futures.ThreadPoolExecutor() as readers:
        read = [readers.submit(process.communicate) for process in started]
        if not faults.until(lambda: all(one.done() for one in read), started):
            for process in started:
                process.kill()
    return [(*one.result(), process.returncode) for one, process in zip(read, started, strict=True)]


def digests(workdir, step):
    """Path -> [dtype, shape, digest] of a checkpoint's leaves."""
    record = workdir / "checkpoints" / str(step) / "meta" / "metadata"
    return json.loads(record.read_text())["leaves"]
