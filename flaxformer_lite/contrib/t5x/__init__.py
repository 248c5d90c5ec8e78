"""Reads checkpoints of T5X and of flaxformer, which no longer install.

Tested against flaxformer's own modules of April 2024 with random weights (T5, LongT5 and Switch,
tests/contrib/t5x/test_flaxformer.py), and against checkpoints in T5X's layout made of
published models of each kind. Not tested against a checkpoint that T5X itself wrote, or
against Google's published ones, which could not be fetched.
"""
