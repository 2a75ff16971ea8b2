"""`python -m metamirror` is the command."""

from metamirror.cli import entry

entry()
