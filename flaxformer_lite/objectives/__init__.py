"""Training objectives, one a file."""

SHARED = (
    "packing",
    "rows",
    "sums",
)  # files that are no plug-ins
