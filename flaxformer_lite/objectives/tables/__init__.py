"""Objectives on labelled rows, one per file."""

# Files that are not plug-ins.
SHARED = (
    "answers",
    "breakdown",
    "chat",
    "retrieval",
    "scores",
    "task",
    "writing",
    "zero_shot",
)
