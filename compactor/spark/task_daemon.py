"""Spark's daemon for Python workers, with workers that die with it and begin tasks at once.

Spark's own daemon tells its workers when it ends in order. When an executor is killed,
Ray kills the daemon too, which then tells nobody: a worker in the middle of a long task
would go on reading and writing files for an attempt that has long been given up.

Two things made every task begin 100 to 200 ms late, which is longer than a small merge takes:

* Before a task, a worker has Python forget what its import path holds. For the archives that
  Spark puts there (its own, and a jar of 5,000 entries) Python reads their directories anew,
  once per package.
* Spark writes a task in two pieces. The system holds the second one back until the first is
  acknowledged (Nagle's algorithm), and the worker's side acknowledges late (40 ms).
"""

import os
import socket
from typing import Any
from zipimport import zipimporter

from pyspark import daemon

from compactor.spark.lifeline import die_with
from compactor.spark.turns import take_short_turns

_run_task = daemon.worker


def main() -> None:
    """Run the daemon; each of its forks is a worker."""
    parent = os.getpid()
    take_short_turns()

    def bind() -> None:
        # A worker's own children are left to it.
        if os.getppid() == parent:
            die_with(parent)

    os.register_at_fork(after_in_child=bind)
    zipimporter.invalidate_caches = _as_it_was  # type: ignore[assignment,method-assign]  # what it is for
    daemon.worker = _run_task_at_once
    daemon.manager()


def _as_it_was(_: zipimporter) -> None:
    """Believe that archives hold what they held: Spark's do not change while it runs."""


def _run_task_at_once(connection: socket.socket, authenticated: bool) -> Any:
    """Run the next task of a connection, acknowledging what comes without delay."""
    # The system goes back to its own ways after some packets, so it is told for each task.
    if hasattr(socket, "TCP_QUICKACK") and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _run_task(connection, authenticated)


if __name__ == "__main__":
    main()
