"""Families of tables."""
