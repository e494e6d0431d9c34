"""`neve demo`: a year of flights in several hundred small files, compacted and verified.

    run           the steps of the demo
    feed          generates the input and adds it to the table
    proof         compares the table with the raw feed, and displays progress

Start a stack → write and add the feed → run two requests while files keep arriving → wait until no
work is left and compare a scan with the raw feed.
"""

from neve.demo.run import main

__all__ = ["main"]
