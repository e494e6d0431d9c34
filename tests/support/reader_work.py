"""What readers are asked to do in tests: harmless, and as hostile as a file can be."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from common.errors import RefusedError
from common.readers.pool import in_reader


@in_reader("file {path}")
def own_process(path: str) -> tuple[str, int]:
    return path, os.getpid()


@in_reader("file {path}")
def abort(path: str) -> None:
    os.abort()


@in_reader("file {path}")
def killed_once(path: str) -> int:
    """Be killed from outside at the first try."""
    mark = Path(path)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@in_reader("file {path}")
def never_end(path: str) -> None:
    while True:
        pass


@in_reader("file {path}")
def sleep(path: str, seconds: float) -> int:
    Path(path).write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()


@in_reader("file {begun}")
def wait_for(begun: str, release: str) -> str:
    Path(begun).touch()
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
