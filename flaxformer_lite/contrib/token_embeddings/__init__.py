"""Objectives whose embeddings are made of tokens: sparse (SPLADE) and late interaction (ColBERT).

Tested against sentence-transformers 6.2: losses, regularizers and published folders, with small
random models (tests/contrib/token_embeddings). Not tested: whether a trained model reaches the
figures of the papers, and PyLate's own training.
"""
