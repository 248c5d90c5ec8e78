"""A run as people see it: the terminal, metrics, plots, samples."""
