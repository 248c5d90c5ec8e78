"""No family raises a false alarm, and the command says what it has found."""

import pytest

from flaxformer_lite import registry, verify
from tests.marks import daily
from tests.models.tiny import OWN, built, small

FAMILIES = [name for name in registry.available("models") if name not in OWN]
# a decoder with windows, and an encoder-decoder
DAILY = ("mistral", "t5")


@pytest.mark.parametrize("family", daily(FAMILIES, DAILY))
def test_no_false_alarm(family):
    findings = verify(*built(small(family)))
    assert len(findings) > 8
    assert not [one for one in findings if one.verdict == "FAULT"]
