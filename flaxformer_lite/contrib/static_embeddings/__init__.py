"""Static embeddings: tables of sentence-transformers (`StaticEmbedding`) and Model2Vec (potion).

Tested against sentence-transformers 6.2 and model2vec 0.10 with random tables, shared rows and
weights (tools/make_static_fixtures.py). Not tested against published folders, which could not be
fetched. Tables in float16 are summed in float32, where Model2Vec sums in float16; none is trained
here.
"""
