"""Word vectors: the family word2vec, its objectives skip_gram and cbow, and the command `similar`.

Tested against gensim 4.4: scores of its vectors are equal in every section, and its skip-gram and
CBOW of the same text stand beside ours in docs/word-vectors.md. Not tested against word2vec.c,
whose files are neither read nor written.
"""
