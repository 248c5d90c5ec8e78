"""Reads, replaces and displays the intermediate values of a model."""
