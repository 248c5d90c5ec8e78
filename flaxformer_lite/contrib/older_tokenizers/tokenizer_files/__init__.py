"""Makes tokenizers of folders without a tokenizer.json."""
