"""Mines hard negatives for rows of a query and its answer: the command `mine`.

Tested against sentence-transformers' mine_hard_negatives, by each of its ranges, scores and
margins. Not tested: a cross-encoder that scores candidates again, as this has none.
"""
