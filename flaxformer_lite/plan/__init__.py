"""Planning for machines that are not at hand: the memory, traffic and time that a training step
needs."""
