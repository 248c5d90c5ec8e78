"""Objectives of sparse and multi-vector embeddings."""
