"""The table before the first step, against what the arrays of the state themselves say."""

import dataclasses
import functools

import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.report import sharding_report
from flaxformer_lite.training import program
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """built(mesh, ..) -> the program of a run, built once."""
    folder = tmp_path_factory.mktemp("text")

    @functools.cache
    def build(mesh, accumulate=1, **sizes):
        cfg = tiny_runs.config(
            folder, train={"batch_size": 16, "accumulate": accumulate}, mesh=mesh
        )
        model = dataclasses.replace(cfg.model, vocab_size=512, **sizes)
        cfg = dataclasses.replace(cfg, model=model)
        return program.build(cfg, sharding.build_mesh(mesh), dummy.example(cfg))

    return build


@pytest.fixture(scope="module")
def table(built):
    return lambda *args, **sizes: dict(sharding_report.sharding_report(built(*args, **sizes)))


def test_one_device_has_no_table(table):
    assert table(MeshConfig(data=1)) == {}


def test_batch_and_rows(table):
    rows = table(MeshConfig(data=2, fsdp=2, context=2), accumulate=2)
    assert (
        rows["batch"]
        == "16 sequences, 4 a device in 2 microbatches of 2 (data x fsdp = 4), each cut in 2 along"
        " its length"
    )


def test_what_is_whole_and_why(table):
    assert (
        "mesh.fsdp=1 and mesh.tensor=1 split no weights" in table(MeshConfig(data=8))["replicated"]
    )
    over_data = table(MeshConfig(data=8, shard_over_data=True))["replicated"]
    assert over_data.endswith("no rule of sharding/parameter_rules.py splits them")
    rows = table(MeshConfig(fsdp=2), max_length=2**15)
    assert rows["replicated"].endswith(
        r"; the largest: embed/position/position 2.1 MB by the rule position(_\d+)?/\w+$"
    )
    assert "the largest" not in table(MeshConfig(fsdp=2))["replicated"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234567, "1.23 MB"), (5 * 10**13, "5e+04 GB")]
)
def test_sizes(count, text):
    assert sharding_report.format_bytes(count) == text
