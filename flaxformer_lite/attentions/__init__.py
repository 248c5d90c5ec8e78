"""Attention, one implementation a file; `dispatch` chooses among them."""

# Files that are no plug-ins.
SHARED = ("arguments", "context_parallel", "dispatch", "flash_relative_bias_kernel", "mask_structure")
