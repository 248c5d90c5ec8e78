"""An objective from outside the package, trained by the command line's own path; no file of the
core knows of it."""

import numpy as np
import pytest

import flaxformer_lite
from examples import ordinal
from examples.ordinal import Ordinal
from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli import command_line
from flaxformer_lite.config import ExperimentConfig, from_config_dict, plugin_name, to_config_dict
from tests.examples import trials
from tests.objectives import tables

# of ml_collections
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

SMALL = trials.OF_ALL | {
    "objective.name": "examples.ordinal:Ordinal",
    "model.encoder_layers": 1,
    "model.init_stddev": 0.1,
    "train.batch_size": 32,
    **dict.fromkeys(("train.eval_every", "train.checkpoint_every", "train.steps"), 40),
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 5,
}


@pytest.mark.nightly
def test_it_learns_is_measured_and_survives_the_round_trip(tmp_path, capsys):
    ordinal.main(tmp_path / "stars.csv")
    values = SMALL | {"data.path": tmp_path / "stars.csv", "data.cache": tmp_path / "cache"}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    page = command_line.config(["--config=classify", *flags])
    flaxformer_lite.run(from_config_dict(ExperimentConfig, page), tmp_path / "run")
    first, *_, last = tables.read_split(tmp_path / "run")
    assert last["accuracy"] > 0.8 and last["distance"] < 0.5 < first["distance"]
    assert "majority class" in capsys.readouterr().out
    kept = workdir.read_config(tmp_path / "run", allow_plugins=True)
    assert plugin_name(kept.objective) == "examples.ordinal:Ordinal"
    assert kept.objective.labels == tuple("12345")
    assert from_config_dict(ExperimentConfig, to_config_dict(kept)) == kept


def test_the_targets_fall_with_the_distance():
    wanted = np.exp([0.0, -2.0, -4.0]) / np.exp([0.0, -2.0, -4.0]).sum()
    targets = {"label": np.int32([0]), "weights": np.float32([1])}
    for logit, due in ((0.0, np.log(3)), (1.0, np.log(2 + np.e) - wanted[1])):
        logits = np.float32([[0, logit, 0]])
        loss = Ordinal(labels=("a", "b", "c")).loss(logits, targets, chunks=1).mean()
        np.testing.assert_allclose(loss, due, rtol=1e-6)
