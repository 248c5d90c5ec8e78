"""What the first load of a model imports."""

import subprocess
import sys

from tests.pretrained.fixtures import ROOT

LOAD = """
import sys
from flaxformer_lite import load_pretrained, registry
load_pretrained(sys.argv[1])
families = registry.available("models")
print(*(name for name in families if f"flaxformer_lite.models.{name}" in sys.modules))
"""


def test_loading_a_model_imports_its_family_and_those_it_builds_on():
    args = [sys.executable, "-c", LOAD, str(ROOT / "gpt2_lm")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bert", "gpt2"]  # whose heads and fields it shares
