"""Trackers, one per file, found by its name, or a class elsewhere as `module:Class`; all derive
from `base.Tracker`."""

# Files that are not plug-ins.
SHARED = ("base",)
