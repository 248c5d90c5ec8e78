"""The process itself: its environment and the other processes of the run."""
