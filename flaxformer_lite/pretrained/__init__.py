"""Loading and saving published checkpoints: files, names, layouts and configs, by the tables in
models/."""
