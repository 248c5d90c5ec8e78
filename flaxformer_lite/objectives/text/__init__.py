"""Objectives on running text, one per file."""

# Files that are not plug-ins.
SHARED = ("denoising", "text_objective")
