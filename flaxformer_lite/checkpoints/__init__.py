"""Training states on disk: verified by content, restored on any mesh."""
