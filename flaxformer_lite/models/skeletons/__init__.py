"""The three arrangements of stacks that all families share."""
