"""Runs a program (`stalled.py POSITION SECONDS train.py FLAGS`) whose first training example from
POSITION on takes SECONDS."""

import runpy
import sys
import time

from flaxformer_lite.data.dataset import Dataset
from tests.runs.launched import SETTINGS

make = Dataset.example


def slow(self, row, seed, position, *records):
    if seed == SETTINGS["seed"] and position >= stalls_at and stalls:
        time.sleep(stalls.pop())
    return make(self, row, seed, position, *records)


if __name__ == "__main__":
    _, stalls_at, seconds, *sys.argv = sys.argv
    stalls_at = int(stalls_at)
    stalls = [float(seconds)]
    Dataset.example = slow
    runpy.run_path(sys.argv[0], run_name="__main__")
