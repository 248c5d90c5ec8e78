"""The three skeletons that families build on: decoder, encoder, and encoder-decoder."""
