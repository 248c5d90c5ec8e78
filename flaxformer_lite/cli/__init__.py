"""The commands of `flaxformer_lite`, one per file; each imports jax only when it runs."""
