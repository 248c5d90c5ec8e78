"""Compares runs, their curves and fields: the command `compare`.

Tested on workdirs of runs that have ended, and that were stopped. Not tested: more than 8 runs on a
page, which it refuses.
"""
