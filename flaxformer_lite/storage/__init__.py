"""Object stores, locks and the content cache."""
