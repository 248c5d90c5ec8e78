"""The tokenizer of sentence-transformers' static embeddings."""

from flaxformer_lite.contrib.static_embeddings.static_tokenizer import read_tokenizer

__all__ = ["read_tokenizer"]
