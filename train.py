"""Trains a model from the command line.

    python train.py --config=configs/gpt2_tiny.py --workdir=runs/gpt2
    python train.py --config=configs/gpt2_tiny.py --workdir=runs/own --config.data.path=my_text.txt

The same command continues a run that was stopped. --config.FIELD=VALUE overrides any field of the config.
On a TPU pod, under Slurm or OpenMPI, run the same command in every process; docs/launch.md has the recipes.
"""

from absl import app, flags, logging
from ml_collections import config_flags

from flaxformer_lite.cli import command_line
from flaxformer_lite.runtime import environment

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file of configs/, or your own.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, metrics and the loss curve.")
COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, where no cluster is detected.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Of all; 1 trains alone, also inside a cluster.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Of this process, from 0.")
START_TIMEOUT = flags.DEFINE_integer("start_timeout", 300, "Seconds for all processes to appear.", lower_bound=1)
PEER_TIMEOUT = flags.DEFINE_integer("peer_timeout", 60, "Seconds until a silent process counts as lost.", lower_bound=5)


def main(_) -> None:
    logging.set_verbosity(logging.FATAL)  # orbax narrates what it does, and what fails; the run says it in one line
    from flaxformer_lite.cli import launch

    joining = COORDINATOR, NUM_PROCESSES, PROCESS_ID, START_TIMEOUT, PEER_TIMEOUT
    launch.main(CONFIG.value, WORKDIR.value, **{flag.name: flag.value for flag in joining})


if __name__ == "__main__":
    environment.configure()
    app.run(main, flags_parser=command_line.parser((CONFIG, "configs/demo.py"), (WORKDIR, "runs/demo")))
