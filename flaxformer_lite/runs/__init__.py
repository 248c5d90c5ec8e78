"""A training run: the loop, its workdir, reports and callbacks."""
