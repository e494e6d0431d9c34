"""`neve demo`: a year of flights, several hundred small files, compacted to rest, and proven.

    run           the course of the demo
    feed          its input, and how it gets into the table
    proof         the table against the raw feed, and what is on the screen

A stack is started → the feed is written and added → two requests run while files keep arriving →
at rest, a scan is compared with the raw feed.
"""

from neve.demo.run import main

__all__ = ["main"]
