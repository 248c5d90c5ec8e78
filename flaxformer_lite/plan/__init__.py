"""What a training step will need of machines that are not there: memory, traffic, time."""
