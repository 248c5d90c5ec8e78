"""Plans a run for a machine that is not here: memory, traffic and time of a step.

The TPU compiler compiles the step on this machine (the extra `tpu-plan`); without it, and for GPUs,
the plan comes from data sheets. Times are the compiler's, without hand-written kernels. Tested by
its arithmetic, on programs' texts. Not tested on a TPU or GPU: no device has run these programs.
"""
