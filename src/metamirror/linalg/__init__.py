"""Kronecker products, stacks of tensors, spectral norms."""
