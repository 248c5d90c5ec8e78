"""Parses the config before jax is imported, and launches the run."""

import argparse
import faulthandler
import signal

from flaxformer_lite.cli import command_line

STARTS_WITHIN = 5  # times --peer_timeout, until all processes have to be there
FLAGS = (  # passed on to launch.main
    "stopped_code",
    "allow_plugins",
    "coordinator",
    "num_processes",
    "process_id",
    "peer_timeout",
)


def run(args: argparse.Namespace) -> None:
    interrupted = signal.getsignal(signal.SIGINT)
    # During imports, KeyboardInterrupt prints a traceback or is lost.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    config = command_line.config(args.overrides)
    if not args.workdir:
        command_line.fail(
            "--workdir is missing; for example --workdir=runs/demo", command_line.BAD_INPUT
        )
    from absl import flags, logging

    flags.FLAGS.mark_as_parsed()  # grain reads flags of its own
    logging.use_absl_handler()
    verbosity = logging.get_verbosity()
    # Orbax logs every action and failure; the run reports failures in one line.
    logging.set_verbosity(logging.FATAL)
    if not faulthandler.is_enabled():
        faulthandler.enable()
    from flaxformer_lite.cli import launch

    try:
        launch.main(
            config,
            args.workdir,
            start_timeout=STARTS_WITHIN * args.peer_timeout,
            **{name: getattr(args, name) for name in FLAGS},
        )
    finally:
        logging.set_verbosity(verbosity)
        signal.signal(signal.SIGINT, interrupted or signal.SIG_DFL)
