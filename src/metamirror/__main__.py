"""`python -m metamirror` is the command."""

from metamirror.cli.main import entry

entry()
