"""The command `plan`: its flags."""

import argparse

from flaxformer_lite.cli.commands.declare import Flags, add_shared, declare_command
from flaxformer_lite.contrib.plan import environment


@declare_command(
    "estimate memory and time of a training run on other machines",
    "--config=llama_7b --topology=v5e:16x16",
    "--config=gpt2_xl --config.mesh.fsdp=8 --topology=h100:8",
    "--config=t5_xxl --topology=v5p-128 --json",
    takes_config=True,
    environment=lambda _: environment.ENVIRONMENT,
    runs="flaxformer_lite.contrib.plan.run_plan",
)
def plan(parser: argparse.ArgumentParser, rarely: Flags) -> None:
    """Estimates the memory and time of a training run on a machine, without the machine.

    Compiles the train step of the config for a TPU's chips on this CPU, with their compiler (pip
    install 'flaxformer_lite[tpu-plan]'). Without it, and for GPUs, the plan is analytic, of memory
    alone, and says so.

    Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or by their vendor's names (v5e-256; v5p-128
    counts cores); a100, h100, h200 by number. Exits with 1 if the step does not fit. Times are the
    compiler's estimate, not measured.
    """
    parser.add_argument("--topology", required=True, help="v5e:16x16, v5p-128, h100:8, ...")
    parser.add_argument(
        "--analytic", action="store_true", help="use no compiler, even if there is one"
    )
    add_shared(parser, "json")
