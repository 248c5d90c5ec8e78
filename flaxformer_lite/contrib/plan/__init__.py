"""Plans a run for a machine that is not here: memory, traffic and time of a step.

The TPU compiler compiles the step on this machine (the extra `tpu-plan`); without it, and for GPUs,
the plan comes from data sheets. Tested against three steps that MaxText measured on v5p and v6e
(docs/plan.md: 0.90 to 1.07 of the measured time). Not tested on a TPU or GPU of ours: no device has
run these programs.
"""
