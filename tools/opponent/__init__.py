"""Hostile inputs, generated from a seed: values, files, templates, signals and kills that a package
must survive clearly."""
