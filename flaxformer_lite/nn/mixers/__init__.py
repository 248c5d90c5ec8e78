"""Layers that mix tokens, one per file: a record and the module that it builds."""

SHARED = ("recurrent",)
