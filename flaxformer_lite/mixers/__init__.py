"""Layers that mix tokens, one a file: a record, and the module that it makes."""

SHARED = ()
