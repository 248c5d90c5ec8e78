"""TPU kernels of attention in Pallas, asked for by name: `model.attention=flash_causal`.

Tested against dense attention in Pallas's interpreter, values and gradients; compiled for v5e, v5p
and v6e by the TPU compiler, whose schedule is all that says how fast they are (docs/plan.md). Not
tested on a TPU: no device has run them, so `model.attention=auto` does not take them.
"""
