"""Adapters: small trained additions to the matrices of a frozen model, one kind per file."""

SHARED = ("merge",)
