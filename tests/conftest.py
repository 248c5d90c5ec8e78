"""Strictness for every test: eight CPU devices, no silent rank or dtype promotion, warnings are errors (pyproject.toml)."""

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

MAPS, MOST = Path("/proc/self/maps"), 10_000


@pytest.fixture(autouse=True, scope="module")
def few_mappings():
    """Linux gives a process 65,530 mappings, of which every compiled program takes some: XLA crashes where none is left."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        jax.clear_caches()
