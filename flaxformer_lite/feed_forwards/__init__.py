"""Feed-forward layers, one a file: a record, and the module that it makes."""

SHARED = ()
