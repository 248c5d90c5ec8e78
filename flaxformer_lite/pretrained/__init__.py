"""Published checkpoints in and out: files, names, layouts and configs, with the tables that models/ holds."""
