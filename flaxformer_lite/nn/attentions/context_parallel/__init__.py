"""Context parallelism: attention over sequences that are split across devices, one way per file.

`mesh.context_attention` names the way; `dispatch` imports it when a mesh splits sequences. Each
file defines `attend`, or `spread`, which wraps an attention of one device.
"""

# Files that are not plug-ins.
SHARED = ("balance",)
