"""From flags to the first step."""
