"""Image search over HTTP: certified hits, with limits, keys and measurements around them."""
