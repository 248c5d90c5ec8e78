"""Trains a model from the command line.

    python train.py --config=configs/gpt2_tiny.py --workdir=runs/gpt2
    python train.py --config=configs/gpt2_tiny.py --workdir=runs/own --config.data.path=my_text.txt

The same command continues a run that was stopped. --config.FIELD=VALUE overrides any field of the config.
"""

from absl import app, flags, logging
from ml_collections import config_flags

from flaxformer_lite import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file of configs/, or your own.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, metrics and the loss curve.")


def main(_) -> None:
    logging.set_verbosity(logging.FATAL)  # orbax narrates what it does, and what fails; the run says it in one line
    from flaxformer_lite.training import launch  # after the flags: --help does not wait for jax

    launch.main(CONFIG.value, WORKDIR.value)


if __name__ == "__main__":
    app.run(main, flags_parser=cli.parser((CONFIG, "configs/demo.py"), (WORKDIR, "runs/demo")))
