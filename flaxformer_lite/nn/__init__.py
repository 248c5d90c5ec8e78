"""Building blocks of models: pure functions, and linen modules over them."""
