"""Tokenizers of families of tables."""
