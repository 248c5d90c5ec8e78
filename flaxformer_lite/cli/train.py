"""Trains a model, or continues a run that was stopped, by the same command.

--config.FIELD=VALUE overrides any field of the config. On a TPU pod, under Slurm or OpenMPI, run the same command in
every process; docs/clusters.md has the recipes.
"""

import argparse
import faulthandler
import signal

from flaxformer_lite.cli import command_line

TAKES_CONFIG = True
EXAMPLES = """examples:
  flaxformer_lite train --config=gpt2_tiny --workdir=runs/gpt2
  flaxformer_lite train --config=gpt2_tiny:rope --workdir=runs/own --config.data.path=my_text.txt
  flaxformer_lite train --config=gpt2_tiny --help
"""
JOINING = ("coordinator", "num_processes", "process_id", "start_timeout", "peer_timeout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", type=command_line.path, help="folder for checkpoints, metrics and the loss curve")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0, if no cluster is detected")
    parser.add_argument("--num_processes", type=int, help="number of processes; 1 trains alone, even inside a cluster")
    parser.add_argument("--process_id", type=int, help="number of this process, from 0")
    parser.add_argument(
        "--start_timeout",
        type=command_line.integer(1),
        default=300,
        help="seconds for all processes to appear (default %(default)s)",
    )
    parser.add_argument(
        "--peer_timeout",
        type=command_line.integer(5),
        default=60,
        help="seconds until a silent process counts as lost (default %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    if not args.workdir:
        command_line.fail("--workdir is missing; for example --workdir=runs/demo", command_line.BAD_INPUT)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # during imports, KeyboardInterrupt gives a traceback or is lost
    config = command_line.config(args.overrides)
    from absl import flags, logging

    flags.FLAGS.mark_as_parsed()  # grain reads flags of its own
    logging.use_absl_handler()
    logging.set_verbosity(logging.FATAL)  # orbax logs all it does, and what fails; the run reports that in one line
    if not faulthandler.is_enabled():
        faulthandler.enable()
    from flaxformer_lite.cli import launch

    launch.main(config, args.workdir, **{name: getattr(args, name) for name in JOINING})
