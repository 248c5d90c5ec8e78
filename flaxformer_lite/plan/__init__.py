"""Plans training runs for other machines: the memory, traffic and time of a train step."""
