"""Does what a process does once, before its first model: a warning, and a bound on programs.

Importing the package does neither. A process that is forked from it computes nothing.

Versions: the package sets no upper bound on jax and flax, and warns of those that are newer than
the tested ones.

Programs: XLA:CPU gives each part of a program memory maps of its own, 190 to 266 for a training
step. Linux grants a process 65,530, and the compilation that asks for more ends it: "Cannot
allocate memory", then SIGSEGV. Only dropping compiled programs gives maps back.
"""

import functools
import importlib.metadata
import logging
import os
import re
from pathlib import Path

LOG = logging.getLogger("flaxformer_lite")
# The newest minor releases that were tested; `make canary` tries newer ones.
TESTED = {
    "jax": (0, 12),
    "flax": (0, 12),
}
COMPILED = "/jax/core/compile/backend_compile_duration"  # the event of a compilation
GRANTED = Path("/proc/sys/vm/max_map_count")
MAPS = Path("/proc/self/maps")
MAX_MAPS_SHARE = 0.75  # of the maps that are granted: from here on, programs are dropped
COMPILATIONS_PER_COUNT = 16  # compilations; to count 50,000 maps takes 35 ms


def prepare_process() -> None:
    """Warns of untested versions and bounds the compiled programs, once per process."""
    notice_untested()
    bound_programs()


def refuse_fork() -> None:
    """Refuses to compute in a process that was forked after the first call.

    JAX's threads are not copied by a fork, and the first computation would wait for them for ever.

    Raises:
      RuntimeError: this process was forked.
    """
    if os.getpid() != _first_process():
        raise RuntimeError(
            "a forked process cannot compute with JAX after its parent has; start the process by"
            " spawn or forkserver, as multiprocessing.get_context('spawn') does."
        )


@functools.cache
def _first_process() -> int:
    return os.getpid()


@functools.cache
def notice_untested() -> None:
    """Logs a warning, once per process, for each library that is newer than tested."""
    for name, tested in TESTED.items():
        version = importlib.metadata.version(name)
        if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) > tested:
            known = ".".join(map(str, tested))
            LOG.warning(
                "%s %s is newer than %s, the last version tested; if it fails: pip install"
                " '%s<%s.%s'",
                name,
                version,
                known,
                name,
                tested[0],
                tested[1] + 1,
            )


@functools.cache
def bound_programs() -> None:
    """Makes JAX drop its compiled programs once this process has most of the maps it may have.

    A program that is called again is then compiled again, or read from the compilation cache. Only
    Linux counts maps.
    """
    if not (GRANTED.exists() and MAPS.exists()):
        return
    import jax  # a family's tables are read without it

    granted = int(GRANTED.read_text())
    bound = MAX_MAPS_SHARE * granted
    compiled = 0

    def listen(event: str, *_args, **_kwargs) -> None:
        nonlocal bound, compiled
        if event != COMPILED:
            return
        compiled += 1
        if compiled % COMPILATIONS_PER_COUNT == 0 and count_maps() > bound:
            jax.clear_caches()
            # What is held elsewhere stays, and must not have all else compiled anew at each look.
            bound = max(MAX_MAPS_SHARE * granted, (count_maps() + granted) / 2)

    jax.monitoring.register_event_duration_secs_listener(listen)


def count_maps() -> int:
    """Returns the number of memory maps of this process."""
    with MAPS.open("rb") as lines:
        return sum(1 for _ in lines)
