"""The machines for which a plan can be made, by their usual names."""

import dataclasses
import math
import re

from flaxformer_lite import registry
from flaxformer_lite.config.rules import ConfigError

GIB_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator, with figures from the maker's data sheet unless a comment says otherwise.

    Attributes:
      name: name in a topology.
      maker: "tpu" or "gpu".
      memory: bytes that a program may use.
      bandwidth: bytes/s of that memory.
      peak: dense bfloat16 FLOP/s.
      link: bytes/s, both directions together, of one axis of a TPU's torus, or of a GPU inside its
        node.
      network: bytes/s per chip to other slices or nodes.
      axes: number of axes of the torus, or 1.
      clock: Hz of the matrix units, derived as peak / FLOPs per cycle, as makers do not publish it.
        0: not known.
    """

    name: str
    maker: str
    memory: float
    bandwidth: float
    peak: float
    link: float
    network: float
    axes: int = 1
    clock: float = 0.0


_LISTED = (
    # Usable memory as the TPU compiler reports it; for GPUs, what the driver leaves.
    Chip("v4", "tpu", 31.25 * GIB_BYTES, 1.23e12, 275e12, 90e9, 6.25e9, 3, 1.05e9),
    Chip("v5e", "tpu", 15.75 * GIB_BYTES, 0.82e12, 197e12, 90e9, 6.25e9, 2, 1.5e9),
    Chip("v5p", "tpu", 95.74 * GIB_BYTES, 2.77e12, 459e12, 180e9, 6.25e9, 3, 1.75e9),
    Chip("v6e", "tpu", 31.25 * GIB_BYTES, 1.64e12, 918e12, 180e9, 12.5e9, 2, 1.75e9),
    Chip("a100", "gpu", 77 * GIB_BYTES, 2.04e12, 312e12, 600e9, 25e9),
    Chip("h100", "gpu", 77 * GIB_BYTES, 3.35e12, 989e12, 900e9, 50e9),
    Chip("h200", "gpu", 138 * GIB_BYTES, 4.8e12, 989e12, 900e9, 50e9),
)
CHIPS = {chip.name: chip for chip in _LISTED}
ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v6litepod": "v6e", "v5": "v5p"}
BY_CORES = ("v4", "v5p")  # names such as v5p-128 count cores, two per chip
LARGEST = {"v5e": 256, "v6e": 256}
EXAMPLES = "v5e:16x16, v5e-256, v5p:4x4x4, v5p-128, v6e:8x8, v4-64, h100:8, a100:8, h200:8"
PATTERN = re.compile(r"(?P<chip>[a-z]+\d*[a-z]*)(?P<mark>[:-])(?P<size>\d+(x\d+)*)")


@dataclasses.dataclass(frozen=True)
class Topology:
    """A number of chips of one kind: a grid of TPUs, or a count of GPUs."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"


def parse(text: str) -> Topology:
    """Parses a topology.

    It is a grid such as `v5e:16x16`, or a maker's name such as `v5e-256` or `v5p-128` (64 chips).

    Raises:
      ConfigError: there is no such machine; the message suggests names.
    """
    match = PATTERN.fullmatch(text.strip().lower().removeprefix("tpu-").replace("_", "-"))
    if not match:
        raise ConfigError(f"--topology={text}: no such machine; try {EXAMPLES}.")
    name = ALIASES.get(match["chip"], match["chip"])
    if name not in CHIPS:
        near = registry.did_you_mean(match["chip"], [*CHIPS, *ALIASES])
        raise ConfigError(f"--topology={text}: no such machine{near}; try {EXAMPLES}.")
    chip = CHIPS[name]
    sizes = tuple(map(int, match["size"].split("x")))
    if min(sizes) < 1:
        raise ConfigError(f"--topology={text}: no chips; try {EXAMPLES}.")
    if chip.maker == "gpu":
        return Topology(chip, (math.prod(sizes),))
    is_name = match["mark"] == "-"
    if is_name or len(sizes) == 1:
        grid = _grid(text, chip, sizes, by_cores=is_name and name in BY_CORES)
        return Topology(chip, grid)
    if len(sizes) != chip.axes:
        example = "16x16"
        if chip.axes == 3:
            example = "4x4x4"
        raise ConfigError(
            f"--topology={text}: {name} is a grid of {chip.axes} sides; for example"
            f" {name}:{example}."
        )
    return Topology(chip, sizes)


def _grid(text: str, chip: Chip, sizes: tuple[int, ...], *, by_cores: bool) -> tuple[int, ...]:
    """Returns the grid of a maker's name: powers of two, as equal as possible, ascending."""
    count = math.prod(sizes)
    unit = "chips"
    per_chip = 1
    if by_cores:
        unit = "cores"
        per_chip = 2
    chips, half = divmod(count, per_chip)
    largest = LARGEST.get(chip.name, 2**13)
    is_power_of_two = not chips & (chips - 1)
    if len(sizes) > 1 or not is_power_of_two or not 0 < chips <= largest or half:
        examples = ", ".join(f"{chip.name}-{n * per_chip}" for n in (4, 16, 64, 256))
        grid = "x".join(["4"] * chip.axes)
        raise ConfigError(
            f"--topology={text}: no slice of {count} {unit}; try {examples}, or a grid such as"
            f" {chip.name}:{grid}."
        )
    power = chips.bit_length() - 1
    if chip.axes == 3 and chips == 4:
        return (2, 2, 1)
    quotient, remainder = divmod(power, chip.axes)
    powers = [quotient] * (chip.axes - remainder) + [quotient + 1] * remainder
    return tuple(2**exponent for exponent in powers)
