"""Readers of folders that keep a table in one of their own."""
