"""Trackers, one per file and named after it, or `module:Class` for a class elsewhere.

All derive from `base.Tracker`.
"""

# Files that are not plug-ins.
SHARED = ("base",)
