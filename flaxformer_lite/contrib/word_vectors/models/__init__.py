"""The family of two tables."""
