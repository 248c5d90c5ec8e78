"""The table before the first step, against what the arrays of the state themselves say."""

import dataclasses

import pytest

from flaxformer_lite import sharding
from flaxformer_lite.config import MeshConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.report import sharding_report
from flaxformer_lite.training import program
from tests.training import tiny_runs


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """table(mesh, ..) -> the table of a run's program."""
    folder = tmp_path_factory.mktemp("text")

    def report(mesh, accumulate=1, **sizes):
        train = {"batch_size": 16, "accumulate": accumulate}
        cfg = tiny_runs.config(folder, train=train, mesh=mesh)
        model = dataclasses.replace(cfg.model, vocab_size=512, **sizes)
        cfg = dataclasses.replace(cfg, model=model)
        built = program.build(cfg, sharding.build_mesh(mesh), dummy.example(cfg))
        return dict(sharding_report.sharding_report(built))

    return report


def test_one_device_has_no_table(table):
    assert table(MeshConfig(data=1)) == {}


def test_batch_and_rows(table):
    rows = table(MeshConfig(data=2, fsdp=2, context=2), accumulate=2)
    split = "4 a device in 2 microbatches of 2 (data x fsdp = 4)"
    assert rows["batch"] == f"16 sequences, {split}, each cut in 2 along its length"


def test_what_is_whole_and_why(table):
    def whole(**sizes):
        return table(MeshConfig(**sizes))["replicated"]

    assert "mesh.fsdp=1 and mesh.tensor=1 split no weights" in whole(data=8)
    no_rule = "no rule of sharding/parameter_rules.py splits them"
    assert whole(data=8, shard_over_data=True).endswith(no_rule)
    large = table(MeshConfig(fsdp=2), max_length=2**15)["replicated"]
    rule = r"2.1 MB by the rule position(_\d+)?/\w+$"
    assert large.endswith(f"; the largest: embed/position/position {rule}")
    assert "the largest" not in whole(fsdp=2)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1234567, "1.23 MB"), (5 * 10**13, "5e+04 GB")]
)
def test_sizes(count, text):
    assert sharding_report.format_bytes(count) == text
