"""From flags to a run; what goes wrong ends in one line and an exit code."""

import signal
import sys

import jax
from ml_collections import ConfigDict

from flaxformer_lite import cli
from flaxformer_lite.checkpoint import CheckpointError
from flaxformer_lite.config import ConfigError, ExperimentConfig, from_config_dict
from flaxformer_lite.training import loop


def main(config: ConfigDict, workdir: str) -> None:
    """Checks the config and runs it.

    Exits with 2 on bad input, 1 on a failed run, 128 + its number on a signal; a bug keeps its traceback.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        caught = loop.run(from_config_dict(ExperimentConfig, config), workdir)
    except ConfigError as error:
        cli.fail(error, cli.BAD_INPUT)
    except (CheckpointError, loop.RunError) as error:
        cli.fail(error, cli.FAILED)
    except OSError as error:
        where = error.filename or workdir
        cli.fail(f"{where}: {error.strerror or error}; the same command continues.", cli.FAILED, at_once=True)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        cli.fail(
            f"out of device memory ({str(error).splitlines()[0][:200]}); lower train.batch_size, raise train.accumulate"
            f" or train.loss_chunks, or set model.remat=full.",
            cli.FAILED,
        )
    except KeyboardInterrupt:
        cli.fail("interrupted; the same command continues from the last checkpoint, if there is one.", 128 + signal.SIGINT)
    if caught:
        sys.exit(128 + signal.Signals[caught])
