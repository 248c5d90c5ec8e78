"""Says whether a training run fits a machine, and what it will cost, without the machine.

The train step of the config is compiled for the machine's chips on this CPU: for TPUs by their compiler (pip install
'flaxformer_lite[tpu-plan]'), for GPUs by XLA's (pip install 'flaxformer_lite[cuda]'). Without a compiler the plan is
analytic, and says so.
"""

import argparse
import os

from flaxformer_lite.cli import command_line

TAKES_CONFIG = True
EXAMPLES = """examples:
  flaxformer_lite plan --config=llama_7b --topology=v5e:16x16 --config.mesh.fsdp=16
  flaxformer_lite plan --config=gpt2_small --topology=h100:8 --search
  flaxformer_lite plan --config=t5_xxl --topology=v5p-128 --json

Machines: v4, v5e, v5p, v6e as grids (v5e:16x16) or by their makers' names (v5e-256; v5p-128 counts cores);
a100, h100, h200 by number. Exits with 1 if the step does not fit. Times are the compiler's estimate, not measured.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topology", required=True, help="v5e:16x16, v5p-128, h100:8, ...")
    parser.add_argument("--search", action="store_true", help="try meshes, batches and remat policies, and rank them")
    parser.add_argument(
        "--compiles", type=command_line.integer(0), default=6, help="most compilations of a search (default 6)"
    )
    parser.add_argument("--analytic", action="store_true", help="use no compiler, even if there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> None:
    from flaxformer_lite.plan.environment import ENVIRONMENT

    os.environ.update(ENVIRONMENT)  # before jax starts, and a config may import it
    from flaxformer_lite.cli import _plan

    _plan.show(args)
