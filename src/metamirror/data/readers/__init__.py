"""Bytes from outside, read with suspicion."""
