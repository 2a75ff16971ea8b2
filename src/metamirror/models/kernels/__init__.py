"""Hand-written forward and backward passes of conv4's blocks."""
