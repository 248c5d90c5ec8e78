"""The commands of `python -m flaxformer_lite`, one a file; each imports jax only when it runs."""
