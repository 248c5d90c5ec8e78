"""The error of a run that cannot go on."""


class RunError(RuntimeError):
    """A run that cannot start or continue; the message is all a user needs."""
