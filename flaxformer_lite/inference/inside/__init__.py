"""Reading, replacing and showing of what a model computes on its way to the output."""
