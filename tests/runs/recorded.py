"""Runs a program (`recorded.py IDS train.py FLAGS`) that notes each training example it makes: its
position and its row."""

import runpy
import sys

from flaxformer_lite.data.pipeline import Dataset
from tests.runs.launched import SETTINGS

make = Dataset.example


def noted(self, row, seed, position, *records):
    if seed == SETTINGS["seed"]:  # others are looked at for their shapes, or held out
        with open(ids, "a") as file:
            file.write(f"{position} {row}\n")
    return make(self, row, seed, position, *records)


if __name__ == "__main__":
    _, ids, *sys.argv = sys.argv
    Dataset.example = noted
    runpy.run_path(sys.argv[0], run_name="__main__")
