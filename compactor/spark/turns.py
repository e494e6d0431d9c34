"""How threads of one process take turns in Python."""

import sys

TURN_S = 0.0005
"""Python's own is ten times as long: a thread that copies 2 MB in a millisecond, outside of
Python, would then wait five for another one that reads footers. Merges are as fast either way."""


def take_short_turns() -> None:
    """Have threads of this process, and of its forks, wait less for each other."""
    sys.setswitchinterval(TURN_S)
