"""Properties that any model should have: one file for each group, and a record of each result."""
