"""Frozen networks whose outputs are the examples: rows of numbers in place of images."""
