"""XLA's GPU compiler on a machine without a GPU, from a description of the GPU."""

import importlib.metadata

import jax
from jax.experimental import topologies

from flaxformer_lite.plan.topology import Chip, Topology

PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
# Compute capability, multiprocessors, float32 units and shared KiB of one, L2 MiB, GHz, GiB; as the
# driver reports them.
DEVICES = {
    "a100": ((8, 0), 108, 64, 164, 40, 1.41, 79.25),
    "h100": ((9, 0), 132, 128, 228, 50, 1.98, 79.11),
    "h200": ((9, 0), 132, 128, 228, 50, 1.98, 141.0),
}


def missing() -> str:
    """Returns why there is no compiler for GPUs, or an empty string."""
    plugin = _plugin()
    if not plugin:
        return "jax's CUDA plugin is not installed: pip install 'flaxformer_lite[cuda]'"
    have = importlib.metadata.version(plugin)
    if have != jax.__version__:
        return (
            f"{plugin} {have} does not match jax {jax.__version__}: pip install"
            f" '{plugin}=={jax.__version__}'"
        )
    return ""


def compiler() -> str:
    """Returns the compiler's name and version."""
    return (
        f"XLA for GPUs ({_plugin()} {importlib.metadata.version(_plugin())}; kernels not tuned,"
        " which needs the GPU)"
    )


def devices(topology: Topology) -> list:
    """Describes the GPUs of a topology, arranged in nodes."""
    in_node = min(topology.count, topology.chip.node)
    nodes = -(-topology.count // in_node)
    described = topologies.get_topology_desc(
        topology.chip.name,
        platform="cuda",
        target_config=target(topology.chip),
        topology=f"1x{nodes}x{in_node}",
    )
    return list(described.devices)[: topology.count]


def target(chip: Chip) -> str:
    """Writes the description of a GPU in the text form of XLA's GpuTargetConfigProto."""
    (major, minor), cores, units, shared, cache, clock, memory = DEVICES[chip.name]
    extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "thread_dim_limit_x": 1024,
        "thread_dim_limit_y": 1024,
        "thread_dim_limit_z": 64,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
        "core_count": cores,
        "fpus_per_core": units,
        "clock_rate_ghz": clock,
        "shared_memory_per_block": 48 * 2**10,
        "shared_memory_per_block_optin": (shared - 1) * 2**10,
        "shared_memory_per_core": shared * 2**10,
        "l2_cache_size": cache * 2**20,
        "memory_bandwidth": int(chip.bandwidth),
        "device_memory_size": int(memory * 2**30),
    }
    lines = [f"  {name}: {value}" for name, value in info.items()]
    lines.append(
        f"  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension:"
        f" {extension} }}"
    )
    lines.append(f'  name: "{chip.name}" dnn_version: "9.10.0"')
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 patch: 0 }",
            f'device_description_str: "{chip.name}"',
        ]
    )


def _plugin() -> str:
    known = {distribution.name for distribution in importlib.metadata.distributions()}
    return next((name for name in PLUGINS if name in known), "")
