"""Settings of a process: memory pages, XLA flags, compilation cache, platforms.

`configure` makes them before jax is imported.
"""

import contextlib
import ctypes
import gc
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import stat
import sys
from pathlib import Path

from flaxformer_lite.config import ConfigError, DataConfig
from flaxformer_lite.files.home import expand_home

# Device files of TPUs; without a plugin, jax can use no other device.
DEVICES = ("dev/accel*", "dev/vfio/*")
GOOGLE = "0x1ae0"  # the PCI vendor of TPUs
BEGUN = "FLAXFORMER_LITE_BEGUN"
C_LIBRARY = "CS_GNU_LIBC_VERSION"
EXTRA = "--xla_backend_extra_options"
# Makes XLA:CPU fuse a function that many calls share once, not at each call.
FUSION = "xla_cpu_flatten_after_fusion"
# new objects between garbage collections: imports and traces make many, and all of them stay
GC_THRESHOLD = 10_000


def configure() -> None:
    """Sets environment variables that are unset; may re-exec the process."""
    if wants_huge_pages() and sys.executable and BEGUN not in os.environ:
        # another process may have created it first
        os.environ.update({"GLIBC_TUNABLES": tunables(), BEGUN: "again"})
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    gc.set_threshold(GC_THRESHOLD)
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_file = flags and not flags.startswith("-")
    if EXTRA not in flags and not names_file:
        os.environ["XLA_FLAGS"] = f"{flags} {EXTRA}={FUSION}".strip()
    if only_cpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = private_folder()
        if folder is not None:
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    # JAX by itself keeps only what took a second to compile, and a run has many smaller programs.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def keep_compiled() -> None:
    """Makes JAX keep the programs that it compiles from now on, as the commands do.

        >>> import flaxformer_lite
        >>> flaxformer_lite.keep_compiled()

    Later processes of this user load them from `~/.cache/flaxformer_lite/compiled`, or from the
    folder `compiled` of the variable FLAXFORMER_LITE_CACHE. A folder that JAX was given stays.
    Call it after `jax.distributed.initialize`, if you call that.
    Several processes on CPU keep nothing, since XLA:CPU loses the order of their messages
    (docs/clusters.md).
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    if jax.distributed.is_initialized() and jax.default_backend() == "cpu":
        return
    folder = private_folder()
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # JAX by itself keeps only what took a second to compile.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()  # jax decides at its first compilation whether to cache


def private_folder() -> Path | None:
    """Makes the folder of compiled programs, and returns it unless others may write there.

    Whoever writes there may run code as whoever reads it, so they are not kept in `data.cache`,
    which users share.
    """
    cache = os.environ.get("FLAXFORMER_LITE_CACHE") or DataConfig.cache
    if "://" in cache:
        return None
    try:
        folder = compiled(Path(cache))
        for path in (folder.parent, folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            info = path.stat()
            why = ""
            if info.st_uid != os.getuid():
                why = "belongs to another user;"
            elif info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                why = "may be written by others; delete it, or"
            if why:
                print(
                    f"notice: compiled programs are not kept: {path} {why} set"
                    " JAX_COMPILATION_CACHE_DIR to a folder that you alone may write.",
                    file=sys.stderr,
                )
                return None
    except (OSError, ConfigError):  # without a home that is writable there is no cache
        return None
    return folder


def wants_huge_pages(root: Path = Path("/")) -> bool:
    """Returns whether the C library can request huge pages and has not been configured by the user.

    XLA:CPU frees its arrays after every step, and the system clears the memory again 4 KiB at a
    time: a seventh to a quarter of a step's time, which pages of 2 MiB save. A kernel set to
    `always` uses them by default, one set to `never` not at all.
    """
    mode = root / "sys/kernel/mm/transparent_hugepage/enabled"
    if "GLIBC_TUNABLES" in os.environ or not mode.exists() or "[madvise]" not in mode.read_text():
        return False
    library = os.confstr(C_LIBRARY) if C_LIBRARY in os.confstr_names else ""
    name, _, version = str(library).partition(" ")
    return name == "glibc" and tuple(int(n) for n in version.split(".")[:2]) >= (2, 35)


def tunables() -> str:
    """Returns the value of GLIBC_TUNABLES, which glibc reads only when a process starts.

    It requests pages of 2 MiB, and one memory pool per core instead of eight, as each pool keeps
    some freed memory.
    """
    return f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={len(os.sched_getaffinity(0))}"


def release_free_memory() -> None:
    """Returns memory that the C library holds to the system: hundreds of MB after compiling."""
    # Other C libraries lack this function.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def compiled(cache: Path) -> Path:
    """Returns the folder of compiled programs in a cache.

    There is one per processor type, as programs crash on a processor with fewer features.
    """
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else [platform.processor()]
    features = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    return expand_home(cache) / "compiled" / hashlib.sha256(features.encode()).hexdigest()[:8]


def only_cpu(root: Path = Path("/")) -> bool:
    """Returns whether libtpu is installed only for its compiler.

    Jax would look for a TPU in vain, and print errors. Returns False if in doubt: with a device
    file like a TPU's, a PCI device of the TPU's vendor, another plugin of jax (all GPUs need one),
    or a platform that the user has chosen.
    """
    if {"JAX_PLATFORMS", "JAX_FORCE_TPU_INIT"} & set(os.environ):
        return False
    if importlib.util.find_spec("libtpu") is None:
        return False
    if importlib.util.find_spec("jax_plugins"):
        return False
    if importlib.metadata.entry_points(group="jax_plugins"):
        return False
    vendors = [path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor")]
    if not vendors or GOOGLE in vendors:
        return False
    return not any(any(root.glob(name)) for name in DEVICES)
