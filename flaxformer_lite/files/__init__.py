"""Files that come from others, read within bounds, and files that are written for others, published
whole."""
