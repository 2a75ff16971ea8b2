"""Measurements of trained runs, and of methods side by side."""
