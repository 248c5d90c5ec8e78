"""Listeners to a run's steps, evaluations and checkpoints; runs/loop.py lists those of a
run."""
