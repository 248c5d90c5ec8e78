"""Compiles kernels one at a time and collects what the TPU compiler writes of each.

    python -m flaxformer_lite.contrib.plan.compile_kernels CHIP FOLDER < kernels.json

kernels.py runs it, with the options that make the compiler write to FOLDER, and reads FOLDER/N.json
for the Nth kernel. A kernel that does not compile has no such file.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flaxformer_lite.contrib.plan import aot, topology
from flaxformer_lite.contrib.plan.topology import CHIPS

DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "pred": "bool",
    "s4": "int4",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "u8": "uint8",
    "u32": "uint32",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
# Names of the files, after the time: ...-ffi_call.1-03-final_bundles.txt
FILES = {
    "bundles": "*ffi_call*[0-9]-final_bundles.txt",
    "units": "*ffi_call*final_hlo-static-per-bundle-utilization.txt",
    "source": "sources/*-0001-*original.txt",
}
MARGIN = 16 * 1024  # KiB
Described = tuple[str, list[int]]  # dtype and shape


def main(chip: str, folder: Path) -> None:
    grid = "x".join(["2", "2", "1"][: CHIPS[chip].axes])
    (device, *_) = aot.devices(topology.parse(f"{chip}:{grid}"), slices=1)
    sharding = NamedSharding(Mesh(np.array([device]), ("x",)), PartitionSpec())
    before: set[Path] = set()
    for number, kernel in enumerate(json.load(sys.stdin)):
        try:
            compile_alone(kernel, sharding)
        except Exception as error:  # compilers raise their own types of errors
            print(f"kernel {number}: {error}", file=sys.stderr)
        written = set(folder.rglob("*.txt"))
        texts = {}
        for name, pattern in FILES.items():
            found = sorted((written - before) & set(folder.glob(pattern)))
            if found:
                texts[name] = found[0].read_text()
        before = written
        if texts.keys() == FILES.keys():
            (folder / f"{number}.json").write_text(json.dumps(texts))


def compile_alone(kernel: dict[str, Any], sharding: NamedSharding) -> None:
    """Compiles a program that only calls the kernel."""
    config = json.loads(kernel["config"])
    results = [describe(array, None) for array in kernel["results"]]
    operands = [describe(array, sharding) for array in kernel["operands"]]
    call = jax.ffi.ffi_call(
        "tpu_custom_call",
        results,
        has_side_effect=True,
        custom_call_api_version=1,
        legacy_backend_config=json.dumps({"custom_call_config": config["custom_call_config"]}),
    )
    lowered = (
        jax.jit(call, out_shardings=sharding).trace(*operands).lower(lowering_platforms=("tpu",))
    )
    lowered.compile({"xla_tpu_scoped_vmem_limit_kib": _on_chip(config)})


def describe(array: Described, sharding: NamedSharding | None) -> jax.ShapeDtypeStruct:
    """Describes an array of the dtype that XLA spells so."""
    dtype, shape = array
    return jax.ShapeDtypeStruct(tuple(shape), DTYPES[dtype], sharding=sharding)


def _on_chip(config: dict[str, Any]) -> int:
    """Returns more KiB of on-chip memory than the kernel uses in its program.

    There some of its operands may lie on the chip already.
    """
    used = [int(each["size"]) for each in config.get("used_scoped_memory_configs", ())]
    return MARGIN + max(used, default=0) // 1024


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
