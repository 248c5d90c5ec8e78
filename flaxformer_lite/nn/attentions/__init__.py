"""Attention, one implementation per file; `dispatch` chooses among them."""

# Files that are not plug-ins.
SHARED = (
    "arguments",
    "dispatch",
    "flash_causal_kernel",
    "flash_relative_bias_kernel",
    "mask_structure",
)
