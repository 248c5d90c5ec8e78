"""What the optimizers share whose updates have one size per number, whatever the matrix."""

# Tensor Programs V, table 8: Adam's rate of a matrix of hidden layers falls with its fan-in.
WIDTH_POWERS = ((r"(^|/)kernel$", -1.0),)
