"""Strictness for every test: eight CPU devices, no silent rank or dtype promotion, warnings are errors (pyproject.toml)."""

import gc
import os
from pathlib import Path

import pytest

from flaxformer_lite.runtime import environment

# Tests compile thousands of tiny programs and run each once: optimising them costs three times what it saves.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} {FLAGS} {environment.EXTRA}={environment.FUSION}"  # as the commands
)

import jax  # noqa: E402, after the flags it reads

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

MAPPINGS, MEMORY = 10_000, 1_000_000_000  # of one process: number, bytes


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Drops compiled programs between files. Each takes memory, and some of the 65,530 mappings that Linux gives a process:
    XLA crashes if there is none left."""
    yield
    maps, status = Path("/proc/self/maps"), Path("/proc/self/statm")
    if maps.exists():
        resident = int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > MEMORY or maps.read_bytes().count(b"\n") > MAPPINGS:
            jax.clear_caches()
            gc.collect()
