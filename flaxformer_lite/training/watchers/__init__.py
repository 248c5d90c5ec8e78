"""Listeners to a run's steps, evaluations and checkpoints; training/loop.py lists those of a
run."""
