"""What readers may take."""

from dataclasses import dataclass

KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLimits:
    """Limits of the readers of one service."""

    readers: int = 8
    """At a time; as many again if none of them ends for a while."""
    memory_bytes: int = 1024**3
    """Of the data of each, beyond what it begins with."""
    wait_s: float = 300.0
    """Longest time for one piece of work."""
    patience_s: float = 10.0
    """So much later, one that did not end itself is ended: it is frozen. And how long work waits
    for a place before it gets a spare one."""
    kept: int = KEPT
    """Readers that wait for work; more are ended when they have done theirs."""
    works: int = 1000
    """Pieces of work after which another one takes its place: memory that was taken stays taken."""
    answer_bytes: int = 256 * 1024**2
    """Largest answer."""
