"""The audit: one entry for each call that may change something, including refused calls.

The audit has two sinks: rotated files of JSON lines, and bounded streams of the store, which `GET
/v1/audit` reads. Calls that were refused early have a file and a stream of their own, and so have
reads. However many there are, they cannot displace entries of changes.

A call is admitted only after its first line (outcome `begun`) is in the file or, without a working
file, in the stream. Therefore every change has an entry; if the gateway's process ends during a
call, the entry stays `begun`. The second line, written shortly after the call, has the outcome. An
entry consists of all lines with the same `id`, and the last line counts.

If neither sink accepts a line, calls that may change something are answered 503 and not started;
all other calls continue. While the store is unavailable, a bounded number of lines for the streams
waits in memory.
"""

import asyncio
import json
import os
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

from common.errors import UnavailableError, redacted
from common.primitives import BoundedMap
from common.runtime import Clock
from common.telemetry import Log
from neve.api import AuditEntry

TEXT_MAX = 500
"""Limit of characters in one text of an entry, since callers write some of the texts."""
LOOK_INTERVAL_S = 1.0
"""Interval between checks that the file still exists, in seconds."""
OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
"""With these flags, opening a pipe without a reader fails instead of blocking."""
WAITING_MAX = 10_000
"""Limit of lines that wait for the streams; beyond it the oldest lines are only in the file."""
BATCH = 200
RETRY_S = 1.0
GATHER_S = 0.1
"""How long outcomes are collected before they are written together."""
EARLY_PER_S, EARLY_BURST = 1.0, 60
"""Rate limit of early refusals per caller, because anyone can cause any number of them."""
EARLY_CALLERS_MAX = 1000


BEGUN = "begun"
"""Outcome of a call that is in progress, or that ended with its gateway's process."""
DONE = "done"
REFUSED, READS = "refused", "reads"
"""Kinds of lines in addition to changes, whose kind is empty; the first is an outcome as well."""


def line_of(entry: AuditEntry) -> bytes:
    """Return an entry as a line of JSON, without a line ending.

    The line contains no rows, no headers except the call id, and no secrets.
    """
    texts = {field.name: shown_text(getattr(entry, field.name)) for field in fields(entry)}
    return json.dumps(texts, ensure_ascii=True, separators=(",", ":")).encode()


def entry_from(line: Mapping[str, Any]) -> AuditEntry:
    """Return the entry of a line; fields that other releases wrote are ignored."""
    return AuditEntry(
        **{field.name: line[field.name] for field in fields(AuditEntry) if field.name in line}
    )


def shown_text(value: Any) -> Any:
    """Return a text, truncated and with possible secrets redacted."""
    return redacted(encodable(value[:TEXT_MAX])) if isinstance(value, str) else value


VALUE_CHARS_MAX, VALUES_MAX = 100, 10
"""Limits of one parameter, so that a long value cannot displace other parameters."""
_PLAIN_VALUE = re.compile(r"[\w.:/@*+-]*", re.ASCII)


def value_text(value: Any) -> str:
    """Return a parameter, truncated and with possible secrets redacted."""
    if isinstance(value, list):
        more = f",… {len(value)} in all" if len(value) > VALUES_MAX else ""
        return ",".join(map(value_text, value[:VALUES_MAX])) + more
    text = redacted(value[:VALUE_CHARS_MAX]) if isinstance(value, str) else json.dumps(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


def body_text(tree: Any, names: Iterable[str]) -> str:
    """Return the parameters of a JSON body; lists as their length, objects as their names.

    Args:
        tree: The body.
        names: Parameters of the route; other parameters are only counted.
    """
    if not isinstance(tree, dict):
        return ""
    given = [name for name in names if tree.get(name) not in (None, [], {}, "")]
    # Parameters of a fixed form come first, so that free text cannot displace them.
    given.sort(key=lambda name: isinstance(tree[name], str | dict))
    words = [f"{name}={_entry_text(tree[name])}" for name in given]
    if unknown := len(tree.keys() - {*names}):
        words.append(f"({unknown} unknown)")
    return " ".join(words)


def _entry_text(value: Any) -> str:
    if isinstance(value, list):
        return f"({len(value)})"
    return value_text(list(value)) if isinstance(value, dict) else value_text(value)


def encodable(value: Any) -> Any:
    """Return a text with `?` for characters that UTF-8 cannot encode, such as lone surrogates."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def outcome_of(status: int | None, error: str) -> str:
    """Return the outcome of a call.

    Args:
        status: HTTP status of the answer; None: there was no answer.
        error: Class of the error that ended an answer after it had started successfully.
    """
    if status is None or status >= 500 or (status < 400 and error):
        return "failed"
    return REFUSED if status >= 400 else DONE


def folded(lines: Iterable[bytes], count: int, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Combine lines into entries, newest first; the last line of an entry counts.

    Args:
        lines: Lines, newest first.
        count: Maximum number of entries.
        chosen: Field → value that entries must have.
    """
    branches: dict[str, dict[str, Any]] = {}
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                entry = {name: encodable(value) for name, value in entry.items()}
                branches.setdefault(entry["id"], entry)
    fits = (
        entry
        for entry in branches.values()
        if all(entry.get(name) == value for name, value in chosen.items())
    )
    return list(islice(fits, count))


# ----------------------------------------------------------------------------------------- The file


class AuditFile:
    """A file of lines, rotated by size.

    The event loop writes the file itself, as it writes the log: a write to the page cache takes
    microseconds, while a hand-over to a thread takes milliseconds. Therefore the file should be on
    a local disk.
    """

    def __init__(self, path: Path, bytes_max: int, kept: int, clock: Clock) -> None:
        """Create a writer; the first line opens the file.

        Args:
            path: Path of the file; older files are `<name>.1`, `<name>.2`, …
            bytes_max: Size at which the file is rotated.
            kept: Number of older files that are kept.
            clock: Clock for the checks that the file still exists.
        """
        self._path, self._bytes_max, self._kept = path, bytes_max, kept
        self._clock = clock
        self._descriptor: int | None = None
        self._size_bytes, self._looked_s = 0, 0.0

    def of_kind(self, kind: str) -> "AuditFile":
        """Return the file for lines of another kind, such as `audit-refused.jsonl`."""
        path = self._path.with_name(f"{self._path.stem}-{kind}{self._path.suffix}")
        return AuditFile(path, self._bytes_max, self._kept, self._clock)

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines.

        Raises:
            OSError: The lines were not written completely.
        """
        try:
            self._append(b"".join(line + b"\n" for line in lines))
        except OSError:
            self.close()
            raise

    def _append(self, whole: bytes) -> None:
        descriptor = self._opened()
        count = os.write(descriptor, whole)
        self._size_bytes += count
        if count < len(whole):
            os.write(descriptor, b"\n")
            raise OSError(f"{count} of {len(whole)} bytes were written")

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        now_s = self._clock.now_s()
        if not 0 <= now_s - self._looked_s < LOOK_INTERVAL_S and not self._is_there():
            self.close()
        if self._size_bytes >= self._bytes_max and self._descriptor is not None:
            self.close()
            self._rotate()
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self._path, OPEN_FLAGS, 0o600)
            self._size_bytes = os.fstat(self._descriptor).st_size
        self._looked_s = now_s
        return self._descriptor

    def _is_there(self) -> bool:
        """Return whether the path still refers to the open file."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _rotate(self) -> None:
        names = [self._path, *map(self._older, range(1, self._kept + 1))]
        for newer, older in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                newer.replace(older)

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


# ---------------------------------------------------------------------------------------- The audit


@dataclass(slots=True)
class AuditCounts:
    """Counts of the audit for metrics."""

    failures: int = 0
    """Lines that a sink did not accept."""


NoteLines = Callable[[Sequence[bytes], str], Awaitable[None]]
"""Appends lines to the stream of a kind; raises UnavailableError."""


@dataclass(slots=True)
class _EarlyRefusals:
    """Rate limit of a caller's early refusals, and the number of dropped ones."""

    left: float = float(EARLY_BURST)
    at_s: float = 0.0
    left_out: int = 0


class Audit:
    """Both sinks of the audit of one gateway. For one event loop."""

    def __init__(
        self, file: AuditFile | None, note_lines: NoteLines, clock: Clock, log: Log
    ) -> None:
        """Create an audit without entries.

        Args:
            file: File of changes; None: only the streams are written.
            note_lines: Appends lines to a stream.
            clock: Clock for the times of entries.
            log: Receives an event when a sink does not accept a line.
        """
        self._file, self._note_lines, self._log = file, note_lines, log
        self._files: dict[str, AuditFile] = {}
        if file is not None:
            self._files = {"": file, **{kind: file.of_kind(kind) for kind in (REFUSED, READS)}}
        self._clock = clock
        self._ended: dict[str, list[bytes]] = {}
        """Outcome lines to write to the files, by kind."""
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Kind and line of outcomes to write to the streams."""
        self._hurry = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._fault = ""
        self._begun_in_stream: set[str] = set()
        """Ids of running calls whose first line is in the stream, because no file took it."""
        self._early: BoundedMap[str, _EarlyRefusals] = BoundedMap(EARLY_CALLERS_MAX)
        self.counts = AuditCounts()
        self.row_writes = RowWrites(self)

    def now_s(self) -> float:
        """Return the current time for a new entry."""
        return self._clock.now_s()

    async def begin(self, entry: AuditEntry) -> None:
        """Write the first line of a call.

        Raises:
            UnavailableError: No sink accepts the line, so the call must not be made.
        """
        line = line_of(entry)
        if self._to_file([line]):
            return
        try:
            await self._note_lines([line], "")
        except UnavailableError as error:
            self._fails("stream", str(error))
            raise UnavailableError(
                "the audit cannot be written, so nothing is changed until it can: its file and the"
                " store both fail (the log of the gateway has the reason)"
            ) from error
        self._begun_in_stream.add(entry.id)

    def end(self, entry: AuditEntry) -> None:
        """Queue the outcome of an admitted call; until it is written, its outcome is `begun`.

        An outcome goes to the stream that has the first line, so that no first line outlasts it.
        """
        begun_there = entry.id in self._begun_in_stream
        self._begun_in_stream.discard(entry.id)
        self._keep(entry, "", REFUSED if entry.outcome == REFUSED and not begun_there else "")

    def end_read(self, entry: AuditEntry) -> None:
        """Queue the entry of a read, which has no first line."""
        self._keep(entry, READS, READS)

    def _keep(self, entry: AuditEntry, file: str, stream: str) -> None:
        line = line_of(entry)
        if self._file is not None:
            self._ended.setdefault(file, []).append(line)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.counts.failures += 1
        self._waiting.append((stream, line))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def refuse_early(self, entry: AuditEntry) -> None:
        """Queue the entry of an early refusal; above the rate limit, only count it."""
        now_s = self._clock.now_s()
        early = self._early.get(entry.caller) or _EarlyRefusals(at_s=now_s)
        self._early.put(entry.caller, early)
        passed_s = max(0.0, now_s - early.at_s)
        early.at_s = now_s
        early.left = min(float(EARLY_BURST), early.left + passed_s * EARLY_PER_S)
        if early.left < 1:
            early.left_out += 1
            return
        early.left -= 1
        if early.left_out:
            details = f"{early.left_out} others like it were left out before; {entry.details}"
            entry = replace(entry, details=details)
            early.left_out = 0
        self._keep(entry, REFUSED, REFUSED)

    async def close(self) -> None:
        """Wait a moment for queued lines to be written, and close the files."""
        self.row_writes.close()
        self._hurry.set()
        if self._sending is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._sending
        for file in self._files.values():
            file.close()

    def _to_file(self, lines: Sequence[bytes], kind: str = "") -> bool:
        """Write lines to the file of a kind, and return whether this succeeded."""
        if self._file is None:
            return False
        try:
            self._files[kind].write(lines)
        except OSError as error:
            self._fails("file", str(error))
            return False
        if self._fault == "file":
            self._fault = ""
        return True

    async def _send(self) -> None:
        while self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._hurry.wait()
            ended, self._ended = self._ended, {}
            for kind, lines in ended.items():
                self._to_file(lines, kind)
            stream = self._waiting[0][0]
            batch = list(takewhile(lambda entry: entry[0] == stream, islice(self._waiting, BATCH)))  # noqa: B023  used up here
            try:
                await self._note_lines([line for _, line in batch], stream)
            except UnavailableError as error:
                self._fails("stream", str(error))
                await asyncio.sleep(RETRY_S)
                continue
            # The oldest lines may have been dropped while the batch was sent.
            for entry in batch:
                if self._waiting and self._waiting[0] is entry:
                    self._waiting.popleft()

    def _fails(self, sink: str, cause: str) -> None:
        self.counts.failures += 1
        if self._fault != sink:
            self._log("audit not written", place=sink, cause=cause)
        self._fault = sink


# ---------------------------------------------------------------------------------- Buffered rows


MINUTE_S = 60.0
OPEN_MAX = 10_000
"""Limit of callers and tables with an open entry; beyond it the oldest entry is ended."""


@dataclass(slots=True)
class _Minute:
    """The calls of one caller that buffered rows of one table within a minute."""

    entry: AuditEntry
    begun: asyncio.Task[None]
    calls: int = 0
    rows: int = 0
    refused: int = 0
    failed: int = 0

    def ended(self) -> AuditEntry:
        """Return the entry with the counts."""
        counts = {"calls": self.calls, "rows": self.rows}
        counts |= {"refused": self.refused, "failed": self.failed}
        details = " ".join(f"{name}={count}" for name, count in counts.items())
        return replace(self.entry, outcome=DONE, call="", details=details)


class RowWrites:
    """One entry per caller, table and minute for calls that buffer rows.

    A writer makes many calls. The first call of a minute is admitted after the entry's first line
    was written; the last line has the counts.
    """

    def __init__(self, audit: Audit) -> None:
        """Start without open entries."""
        self._audit = audit
        self._open: dict[tuple[str, str], _Minute] = {}

    async def begin(self, entry: AuditEntry) -> None:
        """Admit a call.

        Raises:
            UnavailableError: No sink accepts the first line, so the call must not be made.
        """
        key = entry.caller, entry.table
        minute = self._open.get(key)
        if minute is not None and entry.at_s - minute.entry.at_s >= MINUTE_S:
            self._end(key, minute)
            minute = None
        if minute is None:
            loop = asyncio.get_running_loop()
            minute = _Minute(entry, loop.create_task(self._audit.begin(entry)))
            self._open[key] = minute
            loop.call_later(MINUTE_S, self._end, key, minute)
            if len(self._open) > OPEN_MAX:
                oldest = next(iter(self._open))
                self._end(oldest, self._open[oldest])
        try:
            await asyncio.shield(minute.begun)
        except UnavailableError:
            if self._open.get(key) is minute:
                del self._open[key]
            raise

    def open_entry(self, caller: str, table: str) -> AuditEntry | None:
        """Return the entry that counts a call now, because its first line is written; or None."""
        minute = self._open.get((caller, table))
        if minute is None or not minute.begun.done() or minute.begun.cancelled():
            return None
        is_old = self._audit.now_s() - minute.entry.at_s >= MINUTE_S
        return None if is_old or minute.begun.exception() is not None else minute.entry

    def count_done(self, caller: str, table: str, details: str) -> bool:
        """Count a call that has buffered rows, unless it took longer than its minute.

        Args:
            caller: Name of the caller.
            table: Name of the table.
            details: Those of the call (`rows=…`).
        """
        minute = self._open.get((caller, table))
        if minute is not None:
            rows = details.rpartition("rows=")[2]
            minute.calls += 1
            minute.rows += int(rows) if rows.isdigit() else 0
        return minute is not None

    def end(self, entry: AuditEntry) -> None:
        """Count a call that was admitted, by its outcome and its details (`rows=…`)."""
        if entry.outcome == DONE and self.count_done(entry.caller, entry.table, entry.details):
            return
        minute = self._open.get((entry.caller, entry.table))
        if minute is None:  # It took longer than its minute.
            details = f"calls=1 {entry.details}"
            self._audit.end(replace(entry, id=f"aud-{secrets.token_hex(10)}", details=details))
            return
        minute.calls += 1
        minute.refused += entry.outcome == REFUSED
        minute.failed += entry.outcome != REFUSED

    def close(self) -> None:
        """End all open entries."""
        for key, minute in list(self._open.items()):
            self._end(key, minute)

    def _end(self, key: tuple[str, str], minute: _Minute) -> None:
        if self._open.get(key) is minute:
            del self._open[key]
            self._audit.end(minute.ended())
