"""What a program settles before it imports jax: where compiled programs are kept, and which devices to look for."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path

from flaxformer_lite.config import DataConfig

DEVICES = ("dev/accel*", "dev/vfio/*")  # of TPUs; where no plugin is installed, jax can use no others
GOOGLE = "0x1ae0"  # the PCI vendor of TPUs


def settle() -> None:
    """Settles both by jax's environment variables; those that are set already stand."""
    if only_cpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    folder = compiled(DataConfig.cache)
    with contextlib.suppress(OSError):  # a home that cannot be written keeps nothing
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


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
