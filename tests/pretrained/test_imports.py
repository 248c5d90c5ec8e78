"""Imports of the first load of a model."""

import subprocess
import sys

from tests.pretrained.fixtures import ROOT

LOAD = """
import sys
from flaxformer_lite import load_pretrained, registry
load_pretrained(sys.argv[1])
families = registry.available("models")
print(*(name for name in families if f"flaxformer_lite.models.{name}" in sys.modules))
print(*(name for name in sys.modules if name.partition(".")[0] == "flaxformer_lite"))
"""
MOST_MODULES = 109  # of this package, and no more than these of what only addresses and runs need
STORAGE = "flaxformer_lite.storage"
OF_STORES = {STORAGE, f"{STORAGE}.stores", f"{STORAGE}.hub"}  # which tell an address from a path


def test_loading_a_local_model_imports_its_family_and_nothing_of_stores_and_runs():
    args = [sys.executable, "-c", LOAD, str(ROOT / "gpt2_lm")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    families, modules = done.stdout.splitlines()
    assert families.split() == ["gpt2"]
    loaded = set(modules.split())
    assert len(loaded) <= MOST_MODULES, sorted(loaded)
    unneeded = [name for name in loaded if name.split(".")[1:2] in (["checkpoints"], ["data"])]
    assert not unneeded
    assert {name for name in loaded if ".storage" in name} <= OF_STORES
