"""Compiles MaxText's own train step for a pod and writes the text of its program.

    PYTHONPATH=.:maxtext/src PYTHON benchmarks/maxtext_step.py llama2_70b maxtext/src /tmp/step.hlo
    python -m benchmarks.anchors --row=llama2_70b --program=/tmp/step.hlo

PYTHON has what MaxText needs and the jax and libtpu of this project, so that one compiler sees both
steps. MaxText's own ahead-of-time command does the work; the settings are those of the published
runs, except where a comment says otherwise: benchmarks/ in MaxText, and the repository tpu-recipes
for Mixtral.
"""

import importlib
import os
import sys
from pathlib import Path

from flaxformer_lite.contrib.plan.environment import ENVIRONMENT

GATHERS = (
    "--xla_tpu_enable_async_collective_fusion=true"
    " --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true"
    " --xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
)
OVERLAP = (
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true"
    " --xla_tpu_data_parallel_opt_different_sized_ops=true"
)
LAYOUTS = (
    "--xla_tpu_use_minor_sharding_for_major_trivial_input=true"
    " --xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1"
    " --xla_tpu_assign_all_reduce_scatter_layout=true"
)
HOST = (
    "--xla_tpu_enable_all_experimental_scheduler_features=true"
    " --xla_tpu_enable_scheduler_memory_pressure_tracking=true"
    " --xla_tpu_host_transfer_overlap_limit=24"
    " --xla_tpu_aggressive_opt_barrier_removal=ENABLED"
    " --xla_lhs_prioritize_async_depth_over_stall=ENABLED"
    " --xla_tpu_enable_ag_backward_pipelining=true"
    " --xla_should_allow_loop_variant_parameter_in_chain=ENABLED"
    " --xla_should_add_loop_invariant_op_in_chain=ENABLED"
    " --xla_max_concurrent_host_send_recv=100"
    " --xla_tpu_scheduler_percent_shared_memory_limit=100"
    " --xla_latency_hiding_scheduler_rerun=2"
)
LARGE_BLOCKS = (
    "attention=flash",
    "sa_use_fused_bwd_kernel=true",
    *(
        f"sa_block_{name}=2048"
        for name in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    ),
)
OFFLOADED = (
    "remat_policy=custom",
    *(
        f"{name}=offload"
        for name in ("decoder_layer_input", "query_proj", "key_proj", "value_proj")
    ),
)
COMMON = (
    "compile_topology_num_slices=1",
    "dataset_type=synthetic",
    "enable_checkpointing=false",
    "use_iota_embed=true",
    "base_output_directory=/tmp",
    "run_name=plan",
)
# rows of benchmarks/anchors.py -> XLA's flags, then MaxText's settings
STEPS = {
    "llama2_70b": (
        f"{OVERLAP} {GATHERS}",
        "model_name=llama2-70b",
        "compile_topology=v5p-1024",
        "per_device_batch_size=4",
        "max_target_length=4096",
        "remat_policy=save_dot_except_mlpwi",
    ),
    "llama3_8b": (
        # The published run also set HOST; with it the step had not compiled after 10 CPU minutes.
        f"--xla_tpu_scoped_vmem_limit_kib=98304 {LAYOUTS} {OVERLAP} {GATHERS}",
        "model_name=llama3.1-8b",
        "compile_topology=v6e-256",
        "per_device_batch_size=4",
        "max_target_length=8192",
        "out_proj=offload",
        *OFFLOADED,
        *LARGE_BLOCKS,
    ),
    "llama3_70b": (
        f"--xla_tpu_scoped_vmem_limit_kib=98304 {LAYOUTS} {OVERLAP} {GATHERS} {HOST}"
        " --xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
        "model_name=llama3.1-70b",
        "compile_topology=v6e-256",
        "per_device_batch_size=2",
        "max_target_length=8192",
        "weight_dtype=bfloat16",
        *OFFLOADED,
        *LARGE_BLOCKS,
    ),
    "mixtral_8x7b": (
        f"--xla_tpu_scoped_vmem_limit_kib=81920 {OVERLAP} {GATHERS}"
        " --xla_tpu_megacore_fusion_allow_ags=false --xla_enable_async_collective_permute=true"
        " --xla_tpu_enable_ag_backward_pipelining=true",
        "model_name=mixtral-8x7b",
        "compile_topology=v5p-256",
        "per_device_batch_size=36",
        "max_target_length=4096",
        "weight_dtype=bfloat16",
        "attention=flash",
    ),
}


def main(row: str, source: str, out: str) -> None:
    """Runs MaxText's `train_compile`, and keeps the text of what it compiles."""
    os.environ.update(ENVIRONMENT)
    train_compile = importlib.import_module("maxtext.trainers.pre_train.train_compile")
    compile_step = train_compile.jit_and_compile

    def compile_and_keep(*args, **options):
        compiled = compile_step(*args, **options)
        Path(out).write_text(compiled.as_text())
        return compiled

    setattr(train_compile, "jit_and_compile", compile_and_keep)  # noqa: B010
    flags, *settings = STEPS[row]
    base = Path(source) / "maxtext" / "configs" / "base.yml"
    train_compile.main(["", str(base), f"compile_xla_flags={flags}", *settings, *COMMON])


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in STEPS:
        sys.exit(f"maxtext_step.py ROW SOURCE OUT; rows: {', '.join(STEPS)}")
    main(*sys.argv[1:])
