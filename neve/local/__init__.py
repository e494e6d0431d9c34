"""The embedded stack: Redis, Ray and the actors of Névé on one machine.

`LocalStack` starts and stops the stack. Every process of a stack carries a mark in its environment
and listens on the loopback address only. A stop ends the processes that carry the mark and never
touches other Redis servers or Ray clusters of the machine. No module here imports Ray in the
caller's process; code that needs Ray runs in a short-lived process (`actors`, and the end of
`stack`).

    stack         start and stop a whole stack, find a running one
    options       size, listening addresses, allowed table locations
    machine       what the machine provides: Java, Redis, memory, ports
    stack_folder  what a stack keeps on disk
    starter       starts the parts in order and saves each before the next
    servers       the Redis server and the Ray head
    actors        gateway, coordinator and compactors
    processes     start, recognise and end processes of a stack
    supervisor    a process next to the stack: which dead parts it restarts, and when
    logs          the log files of its parts

Start: inspect the machine (`machine`) → start Redis, the Ray head and the actors, and save each in
`stack_folder` (`starter`) → start the `supervisor` (`stack`). Stop: end all processes that carry
the stack's mark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neve.local.options import StackOptions as StackOptions
    from neve.local.stack import LocalStack as LocalStack
else:

    def __getattr__(name):
        """Load a class on first use: the processes of a stack need neither."""
        if name == "LocalStack":
            from neve.local.stack import LocalStack

            return LocalStack
        if name == "StackOptions":
            from neve.local.options import StackOptions

            return StackOptions
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["LocalStack", "StackOptions"]
