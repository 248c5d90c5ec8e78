"""Bounded reading of untrusted files, and atomic publishing of our own."""
