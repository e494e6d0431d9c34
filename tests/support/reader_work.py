"""What readers are asked to do in tests: harmless, and as hostile as a file can be."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.errors import RefusedError
from common.readers.pool import in_reader


def mark(path: str, number: int) -> None:
    """Leave a number for the test: readers cannot write files, but their times."""
    os.utime(path, (number, number))


def marked(path: str) -> int:
    """Return the number that was left."""
    return int(Path(path).stat().st_mtime)


@in_reader("file {path}")
def own_process(path: str) -> tuple[str, int]:
    return path, os.getpid()


@in_reader("file {path}")
def abort(path: str) -> None:
    os.abort()


@in_reader("file {path}")
def end_by(path: str, number: int) -> None:
    os.kill(os.getpid(), number)


@in_reader("file {path}")
def killed_often(path: str, number: int, times: int) -> int:
    """Be ended from outside at the first tries."""
    if (tries := marked(path)) < times:
        mark(path, tries + 1)
        os.kill(os.getpid(), number)
    return os.getpid()


def abort_of_nothing() -> None:
    os.abort()


@in_reader("folder {where}")
def rights(where: str, port: int) -> dict[str, Any]:
    """Try what a reader must not do, in a folder and at a port of this machine."""
    folder = Path(where.removeprefix("s3://bucket"))
    status = Path("/proc/self/status").read_text() if Path("/proc/self/status").exists() else ""
    privileges = [line.split()[1] for line in status.splitlines() if "NoNewPrivs" in line]
    return {
        "reads": (folder / "there").read_text(),
        "writes": _tried(lambda: (folder / "new").write_text("x")),
        "deletes": _tried((folder / "there").unlink) if where == str(folder) else "",
        "runs": _tried(lambda: subprocess.run(["/bin/true"], check=True)),
        "connects": _tried(lambda: socket.create_connection(("127.0.0.1", port), 5).close()),
        "environment": sorted(each for each in os.environ if each.startswith(("NEVE", "AWS"))),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "new_privileges": privileges[0] if privileges else "",
    }


def _tried(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"


@in_reader("file {path}")
def never_end(path: str) -> None:
    while True:
        pass


@in_reader("file {path}")
def sleep(path: str, seconds: float) -> int:
    mark(path, os.getpid())
    time.sleep(seconds)
    return os.getpid()


@in_reader("file {begun}")
def wait_for(begun: str, release: str) -> str:
    mark(begun, 1)
    while not Path(release).exists():
        time.sleep(0.01)
    return "released"


@in_reader("file {path}")
def take(path: str, size_bytes: int) -> int:
    return len(bytearray(size_bytes))


@in_reader("file {path}")
def stop_for_ever(path: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@in_reader("file {path}")
def fail(path: str) -> None:
    raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "what a file made of it")


@in_reader("file {path}")
def refuse(path: str) -> None:
    raise RefusedError("not now", "later")


class _Command:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


@in_reader("file {path}")
def answer_with_code(path: str) -> object:
    return _Command()


@in_reader("file {path}")
def answer_at_length(path: str, size_bytes: int) -> bytes:
    return bytes(size_bytes)
