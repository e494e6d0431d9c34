"""The log files of a stack: their list, their last messages, and copies of Ray's own files.

    <stack>/logs/start.log               the process that starts the actors
                 supervisor.log          the process that restarts dead parts
                 redis.log, ray.log      Redis; output of `ray start`
                 hs_err_pid….log         crash report of a JVM
                 ray/…                   Ray's own daemons and workers of the last run
                 coordinator.log, gateway.log
                 compactor-<name>.log    a compactor's actor
                 driver-<name>.log       its Spark driver
                 executor-<name>/…       its Spark executors and their tasks

While a stack runs, Ray's own files are in its session's folder. That folder is removed with the
stack; the ends of its non-empty files are then kept in `ray/`. All other writers bound the size of
their files: see `common.log_files`.
"""

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError
from common.log_files import SUFFIX, newest_first

START, REDIS, RAY, SUPERVISOR = "start", "redis", "ray", "supervisor"
COORDINATOR, GATEWAY = "coordinator", "gateway"
FIRST_PARTS = (START, SUPERVISOR, REDIS, RAY, COORDINATOR, GATEWAY)
COMPACTORS_PARTS = ("compactor-", "driver-", "executor-")
RAY_PATTERNS = ("raylet.*", "gcs_server.*", "dashboard.log", "worker-*", "java-worker*")
NOISE = ("java-core-", "java-worker-", "slf4j-", "event_")
"""Prefixes of files in which Ray logs only about its own workers."""
KEPT_FILES_MAX, KEPT_BYTES = 40, 256 * 1024
LAST_BYTES, LAST_CHARACTERS = 8 * 1024, 300
READ_BYTES = 64 * 1024
FOLLOW_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class StackLogs:
    """The log files of one stack."""

    folder: Path
    session: Path | None = None
    """Ray's session folder; None or missing if the stack does not run."""

    def path(self, part: str) -> Path:
        """Return the log file of a part."""
        return self.folder / f"{part}{SUFFIX}"

    def parts(self) -> list[str]:
        """Return the parts that have log files, in the order of their start."""
        names = {path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")}
        names |= {path.name for path in self.folder.glob("*/") if path.is_dir()}
        rest = sorted(part for part in names if part.startswith(COMPACTORS_PARTS))
        return [*(part for part in FIRST_PARTS if part in names), *rest]

    def files(self, part: str) -> list[Path]:
        """Return the files of a part, the oldest first.

        Raises:
            ConfigError: The part has no log.
        """
        own = [path for path in (self.path(part),) if path.is_file()]
        more = [path for path in newest_first(self.folder / part) if _is_worth_showing(path)]
        if part == RAY and self.session is not None:
            more = _ray_files(self.session) or more
        if not own and not more:
            parts = ", ".join(self.parts()) or "none yet"
            raise ConfigError(
                f"process {part!r} has no log in {self.folder}, expected one of {parts}"
            )
        return [*own, *reversed(more)]

    def tail(self, part: str, count: int) -> list[str]:
        """Return the last lines of a part across all its files.

        Args:
            part: One of `parts`.
            count: Maximum number of lines.
        """
        lines: deque[str] = deque(maxlen=count)
        for path in self.files(part):
            with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
                lines.extend(line.rstrip("\n") for line in file)
        return list(lines)

    def follow(self, part: str, wait: Callable[[float], object]) -> Iterator[str]:
        """Yield new lines of a part, forever.

        Args:
            part: One of `parts`.
            wait: Waits for a number of seconds.
        """
        places = {path: _size(path) for path in self.files(part)}
        while True:
            for path in self.files(part):
                text, places[path] = _new_lines(path, places.get(path, 0))
                yield from text.splitlines()
            wait(FOLLOW_PAUSE_S)

    def last_words(self, part: str, since_bytes: int = 0) -> str:
        """Return the last non-empty line, shortened; for an event, its cause.

        Args:
            part: The part whose file is read.
            since_bytes: Offset in the file at which to begin.
        """
        path = self.path(part)
        begin = max(since_bytes, _size(path) - LAST_BYTES)
        lines = [line.strip() for line in _read(path, begin).splitlines() if line.strip()]
        return _cause(lines[-1])[:LAST_CHARACTERS] if lines else "it printed nothing"

    def keep_ray(self) -> None:
        """Copy the ends of the logs of Ray's daemons and workers before they are removed."""
        kept = self.folder / RAY
        ray_files = _ray_files(self.session) if self.session is not None else []
        if not ray_files:
            return
        with suppress(OSError):
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True, mode=0o700)
            for path in ray_files[:KEPT_FILES_MAX]:
                begin = max(0, _size(path) - KEPT_BYTES)
                (kept / path.name).write_text(_read(path, begin), encoding="utf-8")
                stat = path.stat()
                os.utime(kept / path.name, (stat.st_atime, stat.st_mtime))


def _cause(line: str) -> str:
    """Return the cause of an event, else its name; return any other line unchanged."""
    try:
        event = json.loads(line)
        return str(event.get("cause") or event["event"])
    except (ValueError, KeyError, AttributeError):
        return line


def _is_worth_showing(path: Path) -> bool:
    """Return whether a file is non-empty and not one of Ray's internal logs."""
    return not path.name.startswith(NOISE) and _size(path) > 0


def _ray_files(session: Path) -> list[Path]:
    """Return the non-empty files of Ray's daemons and workers, the newest first."""
    folder = session / "session_latest" / "logs"
    chosen = {path for pattern in RAY_PATTERNS for path in folder.glob(pattern)}
    return [path for path in newest_first(folder) if path in chosen and _size(path)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, begin: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _new_lines(path: Path, offset: int) -> tuple[str, int]:
    """Return the whole lines after an offset and the next offset; a truncated file starts over."""
    begin = offset if _size(path) >= offset else 0
    try:
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(READ_BYTES)
    except OSError:
        return "", begin
    whole = data[: data.rfind(b"\n") + 1] if len(data) < READ_BYTES else data
    return whole.decode("utf-8", "replace"), begin + len(whole)
