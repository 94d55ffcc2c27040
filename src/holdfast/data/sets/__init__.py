"""Readers of data sets: one layout per file."""
