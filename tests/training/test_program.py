"""What cannot work is said while the program is built, before anything is compiled."""

import dataclasses

import pytest

from flaxformer_lite import partitioning
from flaxformer_lite.config import ConfigError, MeshConfig
from flaxformer_lite.data import blank
from flaxformer_lite.training import program
from tests.training import tiny_runs


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"data": 2, "context": 3}, r"mesh.context=3: input_ids has 32 positions.*try data.length=33"),
        ({"data": 2, "tensor": 4}, r"attention/.*a dimension of 2 does not divide over mesh.tensor=4"),
    ],
)
def test_what_does_not_split_is_refused(tmp_path, mesh, message):
    cfg = tiny_runs.config(tmp_path, mesh=MeshConfig(**mesh))
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=384))
    with pytest.raises(ConfigError, match=message):
        program.build(cfg, partitioning.build_mesh(cfg.mesh), blank.example(cfg))
