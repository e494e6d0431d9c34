"""The embedded stack: Redis, Ray and the actors of Névé on one machine.

`LocalStack` starts and ends it. Everything it starts carries a mark in its environment, listens
on the loopback address only, and is ended again by its own mark: other Redis servers and Ray
clusters of the machine are never touched. Nothing here imports Ray; what needs it runs in a
short-lived process (`actors`, `shutdown`).

    stack         start and end a whole stack, find one that runs
    options       its size, where it listens, where its tables may be
    machine       what the machine has: Java, Redis, memory, ports
    stack_folder  what it keeps on disk
    starter       starts the parts in order, writing down each before the next
    redis_server  the Redis server
    ray_head      the Ray head
    actors        gateway, coordinator and compactors
    shutdown      shuts compactors down before the stack is ended
    processes     start processes, know them again, end them and nobody else
    supervisor    a process next to the stack that starts again what has died
    repairs       which parts it starts, and when
    logs          the log files of its parts

A start: `machine` is inspected → `starter` starts Redis, the Ray head and the actors, and notes
each in `stack_folder` → `stack` starts `supervisor` → an end takes all processes that carry the
stack's mark.
"""

from neve.local.options import StackOptions
from neve.local.stack import LocalStack

__all__ = ["LocalStack", "StackOptions"]
