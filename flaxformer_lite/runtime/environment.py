"""What a program settles before it imports jax: pages, XLA's treatment of layers, the compilation cache, devices to seek."""

import contextlib
import ctypes
import gc
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

from flaxformer_lite.config import DataConfig

DEVICES = ("dev/accel*", "dev/vfio/*")  # of TPUs; where no plugin is installed, jax can use no others
GOOGLE = "0x1ae0"  # the PCI vendor of TPUs
BEGUN = "FLAXFORMER_LITE_BEGUN"
C_LIBRARY = "CS_GNU_LIBC_VERSION"
EXTRA = "--xla_backend_extra_options"
FUSION = "xla_cpu_flatten_after_fusion"  # XLA:CPU then fuses a function that many calls share once, not at each call
GC_THRESHOLD = (
    10_000  # new objects before Python looks for cycles among them: modules and traces make many, and all stay
)


def configure() -> None:
    """By environment variables, of which those already set stand; may start the program again from its beginning."""
    if wants_huge_pages() and sys.executable and BEGUN not in os.environ:
        os.environ.update(
            {"GLIBC_TUNABLES": tunables(), BEGUN: "again"}
        )  # some processes lose the first: once is enough
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    gc.set_threshold(GC_THRESHOLD)
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if EXTRA not in flags and (not flags or flags.startswith("-")):  # else it names a file of flags
        os.environ["XLA_FLAGS"] = f"{flags} {EXTRA}={FUSION}".strip()
    if only_cpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    folder = compiled(DataConfig.cache)
    with contextlib.suppress(OSError):  # a home that cannot be written keeps nothing
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def wants_huge_pages(root: Path = Path("/")) -> bool:
    """Whether the C library could ask for huge pages, and has not been told whether to.

    XLA:CPU gives its arrays back after every step, and the system clears them anew, 4 KiB at a time: a seventh to a
    quarter of a step's time, which pages of 2 MiB save. Where the kernel is set to `always` it does so unasked, under
    `never` not.
    """
    mode = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if "GLIBC_TUNABLES" in os.environ or not mode.exists() or "[madvise]" not in mode.read_text():
        return False
    name, _, version = str(os.confstr(C_LIBRARY) if C_LIBRARY in os.confstr_names else "").partition(" ")
    return name == "glibc" and tuple(int(n) for n in version.split(".")[:2]) >= (2, 35)


def tunables() -> str:
    """What the C library is asked for, on Linux: it reads that when a process begins, and only then.

    Pages of 2 MiB; and as many pools as this process has cores, not eight times as many: each keeps some of what is freed.
    """
    return f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={len(os.sched_getaffinity(0))}"


def release_free_memory() -> None:
    """Returns to the system what the C library keeps of freed memory: after compiling, hundreds of megabytes."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def compiled(cache: str) -> Path:
    """The folder of compiled programs in `data.cache`. Those of one host crash on another whose processor can do less."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else [platform.processor()]
    features = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return Path(cache).expanduser() / "compiled" / hashlib.sha256(features.encode()).hexdigest()[:8]


def only_cpu(root: Path = Path("/")) -> bool:
    """Whether libtpu is installed for its compiler alone: jax would search in vain for a TPU, and libtpu would print errors.

    In doubt it is not: where there is a device file like a TPU's, a PCI device of their vendor, another plugin of jax, as all
    GPUs need one, or where the user has said what to look for.
    """
    if {"JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"} & set(os.environ) or importlib.util.find_spec("libtpu") is None:
        return False
    if importlib.util.find_spec("jax_plugins") or importlib.metadata.entry_points(group="jax_plugins"):
        return False
    vendors = [path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor")]
    return bool(vendors) and GOOGLE not in vendors and not any(path for name in DEVICES for path in root.glob(name))
