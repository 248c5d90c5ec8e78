"""Training states on disk: saved by content, restored on any mesh."""
