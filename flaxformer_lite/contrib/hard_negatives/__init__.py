"""Mines hard negatives for rows of a query and its answer: the command `mine`.

Tested against sentence-transformers' mine_hard_negatives. Not tested: tables whose vectors do not
fit into memory.
"""
