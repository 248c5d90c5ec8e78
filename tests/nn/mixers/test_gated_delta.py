"""What Gated DeltaNet refuses; the checks of contrib/verify compare its packed and cached rows."""

import pytest

from flaxformer_lite.config import ConfigError, Execution
from flaxformer_lite.nn.mixers.gated_delta import GatedDeltaConfig

RECORD = GatedDeltaConfig(key_heads=2, value_heads=4, key_dim=6, value_dim=8)


def test_refusals():
    with pytest.raises(ConfigError, match="left to right; use it in a decoder"):
        RECORD.module(Execution(), causal=False)
    with pytest.raises(ConfigError, match=r"value_heads=3, key_heads=2.*multiple"):
        GatedDeltaConfig(key_heads=2, value_heads=3, key_dim=6, value_dim=8)
