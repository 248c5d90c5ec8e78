"""The start of a run, from the config to the first step."""
