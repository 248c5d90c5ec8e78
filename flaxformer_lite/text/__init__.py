"""Tokenizers, special tokens, conversations and chat templates."""
