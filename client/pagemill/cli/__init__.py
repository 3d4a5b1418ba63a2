"""The `pagemill` command."""

from pagemill.cli.app import main

__all__ = ["main"]
