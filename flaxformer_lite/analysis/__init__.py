"""Programs read without running them: their text, their FLOPs, their compilations."""
