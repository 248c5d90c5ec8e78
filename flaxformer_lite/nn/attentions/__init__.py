"""Attention, one implementation per file; `dispatch` chooses among them.

A kernel for one kind of device says so in `PLATFORM`.
"""

# Files that are not plug-ins.
SHARED = ("arguments", "dispatch", "mask_structure")
