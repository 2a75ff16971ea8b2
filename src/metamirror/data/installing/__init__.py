"""Published archives, turned into stored image sets."""
