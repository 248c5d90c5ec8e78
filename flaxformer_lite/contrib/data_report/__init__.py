"""Shows the data of a config, or tokenizes it beforehand: the command `data`.

Tested on texts, tables and mixtures, and on examples of every objective. Not tested: terminals that
show no colors.
"""
