"""Tokenizers of translators and of Blenderbot-small, whose ids come from a vocab.json.

No tokenizer.json can express them. Tested against the tokenizers of transformers, on texts in six
scripts. Not tested: target languages other than the folder's own.
"""
