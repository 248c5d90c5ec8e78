"""Checks that a run fits a mesh, without the devices."""

import dataclasses
from typing import Any

from jax.sharding import AbstractMesh, AxisType

from flaxformer_lite import sharding
from flaxformer_lite.config import ExperimentConfig
from flaxformer_lite.data import dummy
from flaxformer_lite.runs.start.referenced_weights import build_program
from flaxformer_lite.training import program as programs


def describe_mesh(cfg: ExperimentConfig, count: int) -> Any:
    """Returns the abstract mesh of a run on `count` devices.

    Raises:
      ConfigError: the mesh does not fit the devices, or the batch the mesh.
    """
    sizes = sharding.mesh_sizes(cfg.mesh, count)
    mesh: Any = AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )
    sharding.check_batch(cfg.train.batch_size, cfg.train.accumulate, mesh)
    return mesh


def check_mesh(cfg: ExperimentConfig, count: int) -> None:
    """Checks that a run fits a mesh of `count` devices.

    It traces a model of one period of layers, which takes a second.

    Raises:
      ConfigError: batch, lengths, widths or heads do not divide by the mesh.
    """
    mesh = describe_mesh(cfg, count)
    periods = {
        "encoder_layers": len(cfg.model.kinds),
        "decoder_layers": len(cfg.model.of_decoder.kinds),
    }
    layers = {name: min(period, getattr(cfg.model, name)) for name, period in periods.items()}
    cfg = programs.with_vocabulary(cfg, dummy.vocab_size(cfg))
    short = dataclasses.replace(cfg.model, **layers, share_layers=())
    # pmap needs devices, and splits no more than the batch
    traced = dataclasses.replace(cfg.mesh, mode="jit")
    cfg = dataclasses.replace(cfg, model=short, mesh=traced)
    build_program(cfg, mesh, dummy.example(cfg))
