"""What a model is made of: arrays in, arrays out."""
