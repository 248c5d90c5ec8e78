"""Tokenizers of folders that are older than tokenizer.json, from the files that they have.

Tested against transformers 5.23, and 5.24 for those of sentence_pieces.py: ids, decoded texts,
pairs and special tokens of each kind, with small files of each (tests/contrib/older_tokenizers,
tools/make_tokenizer_fixtures.py). Not tested against every published checkpoint; one that has a
tokenizer.json is read by that alone.
"""
