"""The command line: a client like any other. One module per group of verbs."""

from neve.cli.app import main

__all__ = ["main"]
