import pytest

from flaxformer_lite.config.rules import ConfigError
from flaxformer_lite.contrib.plan import topology


@pytest.mark.parametrize(
    ("name", "grid", "chips"),
    [
        ("v5e:16x16", "v5e:16x16", 256),
        ("v5e-256", "v5e:16x16", 256),
        ("v5litepod-8", "v5e:2x4", 8),
        ("v5e-1", "v5e:1x1", 1),
        ("v6e-32", "v6e:4x8", 32),
        ("TPU-v5p-128", "v5p:4x4x4", 64),  # v5p and v4 count cores
        ("v5p-8", "v5p:2x2x1", 4),
        ("v5p-512", "v5p:4x8x8", 256),
        ("v4-64", "v4:2x4x4", 32),
        ("v5p:4x4x4", "v5p:4x4x4", 64),
        ("h100:8", "h100:8", 8),
        ("a100-16", "a100:16", 16),
    ],
)
def test_names_people_use(name, grid, chips):
    machine = topology.parse(name)
    assert (machine.name, machine.count) == (grid, chips)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5q:2x2", "--topology=v5q:2x2: no such machine.*; try v5e:16x16, v5e-256"),
        ("pod", "--topology=pod: no such machine; try v5e:16x16"),
        ("v5e-100", "no slice of 100 chips; try v5e-4, v5e-16"),
        ("v5p-3", "no slice of 3 cores; try v5p-8"),
        ("v5e-512", "no slice of 512 chips"),
        ("v5e:4x4x4", r"v5e.*grid.*2 sides; for example v5e:16x16"),
        ("v5e:0x4", "no chips"),
    ],
)
def test_unknown_machines_are_one_error_that_offers_names(name, message):
    with pytest.raises(ConfigError, match=message):
        topology.parse(name)


def test_the_clock_is_the_peak_over_a_cycles_work():
    unit = 4 * 2 * 128**2
    for name, units in {"v4": 2, "v5e": 1, "v5p": 2, "v6e": 4}.items():
        chip = topology.CHIPS[name]
        assert chip.peak / (unit * units) == pytest.approx(chip.clock, rel=0.01)
