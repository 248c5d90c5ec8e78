"""Trains a model: `python train.py FLAGS` is `flaxformer_lite train FLAGS` of a checkout, installed
or not."""

from flaxformer_lite.__main__ import start

if __name__ == "__main__":
    start("train")
