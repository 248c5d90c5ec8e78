"""Shows and repeats any past step of a run from its workdir: the commands `steps` and `replay`.

Tested on texts, tables, mixtures and files of token ids, with kills and several processes. Not
tested: GPUs and TPUs, where the numbers need not be the same bit for bit.
"""
