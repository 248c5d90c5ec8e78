"""What families have in common: values, names of weights and of fields in config.json, heads."""
