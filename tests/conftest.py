"""Strictness for every test: eight CPU devices, no silent rank or dtype promotion, warnings are
errors (pyproject.toml); and the same surroundings on every machine: an empty home, no settings."""

import atexit
import ctypes
import gc
import importlib.metadata
import json
import os
import shutil
import site
import tempfile
from pathlib import Path

import pytest

# Beginnings of the variables by which a shell could change what a test sees.
SETTINGS = (
    ("AWS_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR", "TENSORSTORE_")
    + ("SLURM_", "OMPI_", "PMIX_", "KUBERNETES_", "WANDB_", "TRACKIO_")
    + ("FLAXFORMER_LITE_", "JAX_", "LIBTPU_", "GLIBC_TUNABLES", "PYTHONWARNINGS", "MPL")
    + ("PYTHONDONTWRITEBYTECODE",)  # each process would compile the package anew
    + ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_", "XDG_")
    + ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
)
KEPT = ("FLAXFORMER_LITE_DEFAULT_XLA", "JAX_PLATFORMS")

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit this
    for variable in [name for name in os.environ if name.startswith(SETTINGS)]:
        if variable not in KEPT:
            del os.environ[variable]
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages may lie there
    os.environ["HOME"] = tempfile.mkdtemp(prefix="flaxformer_lite-home-")
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

from tests import axis_letters  # noqa: E402

axis_letters.install()  # before the package is imported

from flaxformer_lite.runtime import environment  # noqa: E402
from tests.object_stores import bucket, gcs, s3  # noqa: E402, F401, fixtures
from tests.refusals import refusal  # noqa: E402, F401

# Tests compile thousands of tiny programs and run each once: optimising them costs three times what
# it saves. Each fusion through MLIR, and a module of LLVM for each part of a program, would make a
# compilation six times as long.
# FLAXFORMER_LITE_DEFAULT_XLA=1 tests the programs that a user runs (`make nightly`).
DEFAULT_XLA = bool(os.environ.get("FLAXFORMER_LITE_DEFAULT_XLA"))
# Eight devices meet late on a busy machine: XLA by itself ends a process after 40 seconds.
DEVICES = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1800",
    "--xla_cpu_collective_call_terminate_timeout_seconds=3600",
)
FLAGS = (
    *DEVICES,
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    f"{environment.EXTRA}={environment.FUSION}",  # as the commands
)

if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:3])) > (
    0,
    11,
    0,
):  # it knows this flag no longer
    FLAGS = tuple(flag for flag in FLAGS if "fusion_emitters" not in flag)

if DEFAULT_XLA:
    FLAGS = DEVICES

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), *FLAGS))
gc.set_threshold(environment.GC_THRESHOLD)

import jax  # noqa: E402, after the flags it reads
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402

from tests import programs  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
if not DEFAULT_XLA:
    programs.share_contexts()
    programs.share_executables()
    programs.trust_shapes()

# folders of few tests that take long
RUNS = ("runs", "examples", "plan", "cli", "training")
LONG = ("docs", "configs", "budgets", "readme", "plugins", "families", "parity")  # and files
MEMORY = 1_800_000_000  # bytes of one process, of two on a machine that may have 4 GB for them
LIBC = ctypes.CDLL(None)
limit = MEMORY


def resident() -> int:
    """Returns the bytes of memory that this process holds, on Linux."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def pytest_collection_modifyitems(items):
    """Begins with the longest files, so that no worker is left with one of them at the end.

    What is imported by now stays: collections of garbage need not look at it again.
    """

    def is_short(item):
        is_long = item.path.stem.removeprefix("test_") in LONG
        return item.path.parent.name not in RUNS and not is_long

    items.sort(key=is_short)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def spare_what_has_its_own_tests():
    """Starts no process for a chat template (tests/pretrained/test_tokenizer.py), traces
    no step to count the FLOPs of a run (tests/runs/test_loop.py), makes a state in one program
    (tests/runs/test_init_per_leaf.py), and waits for no disk (tests/files/test_publish.py): a tenth
    of a second, often."""
    from flaxformer_lite.runs.report import text
    from flaxformer_lite.runs.start import initial_state
    from flaxformer_lite.text import chat_template, render_template

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            chat_template,
            "_in_process",
            lambda request: render_template.answer(json.loads(json.dumps(request))),
        )
        banner = text.banner

        def banner_of_few_flops(experiment, *rest):
            experiment.program.__dict__.setdefault("flops_per_step", 3_000_000)
            return banner(experiment, *rest)

        patch.setattr(text, "banner", banner_of_few_flops)
        patch.setattr(os, "fsync", lambda number: None)
        if not DEFAULT_XLA:
            patch.setattr(initial_state, "init_per_leaf", programs.init_at_once)
        yield


@pytest.fixture(autouse=True)
def forget_the_compilation_cache():
    """Training keeps compiled programs in a folder; without this, all later tests of the process
    would write theirs there."""
    yield
    if jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@pytest.fixture(autouse=True)
def forget_programs():
    """Drops compiled programs once they take much memory, and gives it back: the C library by
    itself would keep it.

    They also take mappings, of which Linux gives a process 65,530: XLA crashes if there is none
      left.
    """
    global limit
    yield
    if resident() > limit:
        programs.forget()
        jax.clear_caches()
        gc.collect()
        getattr(LIBC, "malloc_trim", lambda _: 0)(0)
        # whatever holds the rest, do not compile for every test anew
        limit = max(MEMORY, resident() + MEMORY // 3)
