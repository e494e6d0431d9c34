"""Spark's daemon for Python workers, with workers that die with it and start tasks at once.

Spark's own daemon stops its workers when it ends in an orderly way. When an executor is killed, Ray
kills the daemon as well, without a chance to stop them. A worker in the middle of a long task would
then continue to read and write files for an attempt that was given up long ago.

Three causes delayed every task by 100 to 200 ms, longer than a small merge takes:

* Before a task, a worker invalidates Python's import caches. For the archives that Spark puts on
  the import path (its own, and a jar of 5,000 entries) Python then reads their directories again,
  once per package.
* Spark writes a task in two pieces. The system delays the second one until the first is
  acknowledged (Nagle's algorithm), and the worker's side acknowledges late (40 ms).
* A worker searches for garbage after each task, which takes 25 to 80 ms with all libraries. The
  warm-up excludes them, but Spark ends workers that were idle for a minute. So a worker that starts
  later excludes what its first task has loaded.

Spark's daemon forks a worker for each connection, which then waits for a secret. Here a worker ends
at once if another user of the machine has connected, so that other users cannot fill the machine
with waiting workers.
"""

import importlib
import os
import socket
from pathlib import Path
from typing import Any
from zipimport import zipimporter

from pyspark import daemon

from common.log_files import STDERR, TASK_LOGS_VARIABLE, send_to
from common.runtime import die_with_parent, ignore_what_is_loaded, shorten_thread_switches

SHARED_MODULES = (
    *("pandas", "pyarrow.compute", "pyarrow.parquet"),
    *("common.expressions.clauses", "common.settings", "common.wire"),
    "compactor.rewrite.spark_tasks",
)
"""Loaded once for all workers. Arrow loads pandas when it converts the first list. Polars is not
among them: it starts threads, which a fork would lose. Modules load it where they use it, so that a
task that reads or stores values of expressions does without it."""
_run_task = daemon.worker
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, OWNER = 1, 2, 7
"""Columns of Linux's table of connections."""


def main() -> None:
    """Run the daemon; each of its forks is a worker."""
    parent = os.getpid()
    _take_errors()
    shorten_thread_switches()

    def bind() -> None:
        # A worker's own children are not affected.
        if os.getppid() == parent:
            die_with_parent(parent)

    os.register_at_fork(after_in_child=bind)
    zipimporter.invalidate_caches = _as_it_was  # type: ignore[assignment,method-assign]  # the purpose
    daemon.worker = _run_task_at_once
    for name in SHARED_MODULES:
        importlib.import_module(name)
    daemon.manager()


def _take_errors() -> None:
    """Redirect the error output of tasks to a file, if one is configured.

    Otherwise it goes to the output of the executor, which Ray keeps in its own folder.
    """
    if folder := os.environ.get(TASK_LOGS_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        send_to(Path(folder, "tasks.log"), STDERR)


def _as_it_was(_: zipimporter) -> None:
    """Keep the caches of archives, because Spark's archives do not change while it runs."""


def _run_task_at_once(connection: socket.socket, authenticated: bool) -> Any:
    """Run the next task of a connection, and acknowledge its data without delay."""
    if not authenticated and peer_owner(connection) not in {None, os.getuid()}:
        os._exit(1)
    # The system resets the option after some packets, so it is set for each task.
    if hasattr(socket, "TCP_QUICKACK") and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    code = _run_task(connection, authenticated)
    ignore_what_is_loaded()
    return code


def peer_owner(connection: socket.socket) -> int | None:
    """Return the user at the other end of a local connection; None: unknown.

    Args:
        connection: A TCP connection.
    """
    own_address, peer_address = (
        f":{address[1]:04X}" for address in (connection.getsockname(), connection.getpeername())
    )
    for table in CONNECTIONS:
        try:
            rows = [line.split() for line in table.read_text().splitlines()]
        except OSError:
            continue
        for row in rows:
            if row[LOCAL].endswith(peer_address) and row[REMOTE].endswith(own_address):
                return int(row[OWNER])
    return None


if __name__ == "__main__":
    main()
