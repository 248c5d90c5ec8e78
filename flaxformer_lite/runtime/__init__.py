"""The process: its environment, its fellow processes."""
