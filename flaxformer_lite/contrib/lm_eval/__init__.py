"""Measures models by EleutherAI's lm-evaluation-harness.

Tested against the harness 0.4.13 beside the same models in transformers (docs/lm-eval.md). Not
tested with tasks of images, or with its server. Needs the extra `lm-eval`.
"""
