"""The version, where the build can read it without importing torch."""

__version__ = "0.2.0"
"""The version of the package, as `metamirror --version` prints it."""
