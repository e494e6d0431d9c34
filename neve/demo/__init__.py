"""`neve demo`: a year of flights, several hundred small files, compacted to rest, and proven."""

from neve.demo.run import main

__all__ = ["main"]
