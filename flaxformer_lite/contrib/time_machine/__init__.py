"""Shows the rows of any step of a run, and repeats the step: the commands `steps` and `replay`.

Tested on runs of texts, tables and mixtures on one process, whose steps are repeated bit for bit.
Not tested: runs of several processes, or of TPUs or GPUs.
"""
