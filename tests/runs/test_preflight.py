"""What hosts compare before their first step."""

import jax

from flaxformer_lite import pages
from flaxformer_lite.config import ExperimentConfig, from_config_dict
from flaxformer_lite.runs.start.preflight import program_facts
from flaxformer_lite.runtime.processes import differences


def test_a_host_with_another_jax_is_named(monkeypatch):
    cfg = from_config_dict(ExperimentConfig, pages.get_config("demo"))
    here = program_facts(cfg)
    assert not differences([["first", here], ["second", program_facts(cfg)]])
    installed = jax.__version__
    monkeypatch.setattr(jax, "__version__", "0.9.0")
    there = program_facts(cfg)
    found = differences([["first", here], ["second", there], ["third", here]])
    assert f"process 1 (second): jax is '0.9.0', elsewhere '{installed}'" in found
