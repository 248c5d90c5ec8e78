"""Feed-forward layers, one per file: a record and the module that it builds."""

SHARED = ()
