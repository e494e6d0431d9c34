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

Spark's daemon forks a worker for whoever connects, which then waits for a secret. A worker of
ours ends at once if another user of the machine has connected, so that nobody can fill the
machine with workers that wait.
"""

import os
import socket
from pathlib import Path
from typing import Any
from zipimport import zipimporter

from pyspark import daemon

from common.log_files import STDERR, TASK_LOGS_VARIABLE, send_to
from compactor.spark.startup import die_with_parent, shorten_thread_switches

_run_task = daemon.worker
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, OWNER = 1, 2, 7
"""Columns of what Linux tells of each end of a connection."""


def main() -> None:
    """Run the daemon; each of its forks is a worker."""
    parent = os.getpid()
    _take_errors()
    shorten_thread_switches()

    def bind() -> None:
        # A worker's own children are left to it.
        if os.getppid() == parent:
            die_with_parent(parent)

    os.register_at_fork(after_in_child=bind)
    zipimporter.invalidate_caches = _as_it_was  # type: ignore[assignment,method-assign]  # what it is for
    daemon.worker = _run_task_at_once
    daemon.manager()


def _take_errors() -> None:
    """Send what tasks write to their errors to a file, where one is wanted.

    Else it ends in the output of the executor, which Ray keeps in a folder of its own.
    """
    if folder := os.environ.get(TASK_LOGS_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        send_to(Path(folder, "tasks.log"), STDERR)


def _as_it_was(_: zipimporter) -> None:
    """Believe that archives hold what they held: Spark's do not change while it runs."""


def _run_task_at_once(connection: socket.socket, authenticated: bool) -> Any:
    """Run the next task of a connection, acknowledging what comes without delay."""
    if not authenticated and peer_owner(connection) not in {None, os.getuid()}:
        os._exit(1)
    # The system goes back to its own ways after some packets, so it is told for each task.
    if hasattr(socket, "TCP_QUICKACK") and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _run_task(connection, authenticated)


def peer_owner(connection: socket.socket) -> int | None:
    """Return the user at the other end of a connection on this machine; None: nobody tells.

    Args:
        connection: Over TCP.
    """
    ours, theirs = (
        f":{place[1]:04X}" for place in (connection.getsockname(), connection.getpeername())
    )
    for table in CONNECTIONS:
        try:
            rows = [line.split() for line in table.read_text().splitlines()]
        except OSError:
            continue
        for row in rows:
            if row[LOCAL].endswith(theirs) and row[REMOTE].endswith(ours):
                return int(row[OWNER])
    return None


if __name__ == "__main__":
    main()
