"""`neve demo`: a year of flights in several hundred small files, compacted and verified.

    run           the feed, the steps of the demo, and the comparison with the raw feed

Start a stack → write and add the feed → run two requests while files keep arriving → wait until no
work is left and compare a scan with the raw feed.
"""

from neve.demo.run import main

__all__ = ["main"]
