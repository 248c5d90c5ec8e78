"""Rule of the optimizers that update each number by itself, whatever its matrix."""

# Tensor Programs V, table 8: Adam's rate of a matrix of hidden layers falls with its fan-in.
WIDTH_POWERS = ((r"(^|/)kernel$", -1.0),)
