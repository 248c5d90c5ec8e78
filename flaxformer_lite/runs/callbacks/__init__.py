"""Callbacks on the steps, evaluations and checkpoints of a run; runs/loop.py lists them."""
