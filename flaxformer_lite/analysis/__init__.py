"""Analysis of programs without running them: their text, their FLOPs, their compilations."""
