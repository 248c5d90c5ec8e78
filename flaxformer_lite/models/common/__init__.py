"""Values, names of weights and of fields in config.json, and heads that families share."""
