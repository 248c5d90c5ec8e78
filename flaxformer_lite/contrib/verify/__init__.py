"""Verifies that a model computes what it should: the command `verify`, and `checks.verify`.

One file for each group of properties, and a record of each result. Tested on every family, with 25
faults planted in programs, and on meshes of 8 simulated devices. Not tested: meshes of TPUs or
GPUs.
"""
