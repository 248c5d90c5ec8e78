"""Compares runs by their results, curves and fields: the command `compare`.

Tested on workdirs as runs write them, while they go on and when they are killed. Not tested: runs
of earlier versions.
"""
