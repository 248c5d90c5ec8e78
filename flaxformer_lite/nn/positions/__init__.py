"""Position encodings, one per file."""

# Files that are not plug-ins.
SHARED = ("encoding",)
