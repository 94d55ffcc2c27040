"""What the service answers, by what it is about."""
