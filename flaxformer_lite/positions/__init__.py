"""Position encodings, one a file."""

# Files that are no plug-ins.
SHARED = ("encoding",)
