"""Reports of a run: the terminal, metrics, plots, samples."""
