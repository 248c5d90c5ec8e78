"""Runs a program (`recorded.py IDS train.py FLAGS`) that notes each training example it makes: its
position and its row."""

import runpy
import sys

from absl import logging

from flaxformer_lite.runtime import environment

SEED = 7  # of the runs whose examples are noted


def note(ids):
    """Makes each example of the training data write a line to the file `ids`."""
    from flaxformer_lite.data.dataset import Dataset

    make = Dataset.example

    def noted(self, row, seed, position, *records):
        if seed == SEED:  # others are looked at for their shapes, or held out
            with open(ids, "a") as file:
                file.write(f"{position} {row}\n")
        return make(self, row, seed, position, *records)

    Dataset.example = noted


if __name__ == "__main__":
    # A command may begin its process anew, which after the import of jax would take seconds.
    environment.configure()
    logging.set_verbosity(logging.FATAL)  # as the command does before it imports grain
    _, ids, *sys.argv = sys.argv
    note(ids)
    runpy.run_path(sys.argv[0], run_name="__main__")
