"""The audit: one entry for each call that may change something, refused ones too.

Two places keep it: files of JSON lines, rotated, and streams of the store, bounded, which `GET
/v1/audit` reads. Calls that were refused before anything of them was looked at have a file and a
stream of their own, and so have reads: however many they are, they push out no change.

A call is let in only when the file has taken its first line (outcome `begun`) or, without a file
that works, the stream. So no call changes anything that nothing tells of: of one that ends with the
gateway's process `begun` is left. The second line, which follows within a moment, has the outcome;
entries are lines of one `id`, and the last one counts.

If neither place takes a line, calls that may change something are answered 503 and not begun; all
others go on. Lines for the stream wait in memory while the store is away, a bounded number.
"""

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Any

from common.bounded_map import BoundedMap
from common.clock import Clock
from common.errors import UnavailableError
from common.redaction import redacted
from common.telemetry import Log
from neve.api import AuditEntry

TEXT_MAX = 500
"""Characters of one text of an entry: callers write some of them."""
LOOK_INTERVAL_S = 1.0
"""How often it is looked whether the file is still there."""
OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
"""What is no file and has no reader is an error then, and does not wait for one."""
WAITING_MAX = 10_000
"""Lines that wait for the stream; when there are more, the oldest are in the file only."""
BATCH = 200
RETRY_S = 1.0
GATHER_S = 0.1
"""How long outcomes are gathered before they are written together."""
EARLY_PER_S, EARLY_BURST = 1.0, 60
"""Refusals at the door of one caller: anyone can cause any number of them."""
EARLY_CALLERS_MAX = 1000


BEGUN = "begun"
"""Outcome of a call that has not ended, or with whose gateway it ended."""


def line_of(entry: AuditEntry) -> bytes:
    """Return an entry as a line of JSON, without an end of line.

    It has no rows, no header but the call id, and nothing that is secret.
    """
    texts = {field.name: shown_text(getattr(entry, field.name)) for field in fields(entry)}
    return json.dumps(texts, ensure_ascii=True, separators=(",", ":")).encode()


def entry_from(line: Mapping[str, Any]) -> AuditEntry:
    """Return an entry from a line, perhaps of a release that knows further fields."""
    return AuditEntry(
        **{field.name: line[field.name] for field in fields(AuditEntry) if field.name in line}
    )


def shown_text(value: Any) -> Any:
    """Return a text bounded, and without what may be a secret in it."""
    return redacted(encodable(value[:TEXT_MAX])) if isinstance(value, str) else value


VALUE_CHARS_MAX, VALUES_MAX = 100, 10
"""Of one parameter: no caller cuts another one off by a long one."""
_PLAIN_VALUE = re.compile(r"[\w.:/@*+-]*", re.ASCII)


def value_text(value: Any) -> str:
    """Return a parameter bounded, and without what may be a secret in it."""
    if isinstance(value, list):
        more = f",… {len(value)} in all" if len(value) > VALUES_MAX else ""
        return ",".join(map(value_text, value[:VALUES_MAX])) + more
    text = redacted(value[:VALUE_CHARS_MAX]) if isinstance(value, str) else json.dumps(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


def body_text(tree: Any, names: Iterable[str]) -> str:
    """Return the parameters of a JSON body: of lists how many, of objects the names of entries.

    Args:
        tree: The body.
        names: Parameters that its route takes; of others their number is told.
    """
    if not isinstance(tree, dict):
        return ""
    known = [name for name in names if tree.get(name) not in (None, [], {}, "")]
    # Those of a fixed form first: no text of a caller cuts them off.
    known.sort(key=lambda name: isinstance(tree[name], str | dict))
    words = [f"{name}={_entry_text(tree[name])}" for name in known]
    if unknown := len(tree.keys() - {*names}):
        words.append(f"({unknown} unknown)")
    return " ".join(words)


def _entry_text(value: Any) -> str:
    if isinstance(value, list):
        return f"({len(value)})"
    return value_text(list(value)) if isinstance(value, dict) else value_text(value)


def encodable(value: Any) -> Any:
    """Return a text with `?` for what UTF-8 does not have: a caller may send it, no answer can."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def outcome_of(status: int | None, error: str) -> str:
    """Return how a call has ended.

    Args:
        status: Of its answer; None: there was none.
        error: Class of an error that an answer has ended with after it had begun well.
    """
    if status is None or status >= 500 or (status < 400 and error):
        return "failed"
    return "refused" if status >= 400 else "done"


def folded(lines: Iterable[bytes], count: int, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return entries of lines, newest first; of several lines of one entry the last one counts.

    Args:
        lines: Newest first.
        count: Entries at most.
        chosen: Values that fields must have.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and isinstance(entry.get("id"), str):
                entry = {name: encodable(told) for name, told in entry.items()}
                found.setdefault(entry["id"], entry)
    fits = (
        entry
        for entry in found.values()
        if all(entry.get(name) == value for name, value in chosen.items())
    )
    return list(islice(fits, count))


# ----------------------------------------------------------------------------------------- The file


class AuditFile:
    """A file of lines, rotated by size.

    It is written by the event loop itself, as the log is: into the memory of the system that takes
    microseconds, where a thread would wait for its turn of milliseconds. So it belongs on a disk of
    the machine.
    """

    def __init__(self, path: Path, bytes_max: int, kept: int, clock: Clock) -> None:
        """Open nothing yet.

        Args:
            path: Of the file; older ones are `<name>.1`, `<name>.2`, …
            bytes_max: Size from which on it is rotated.
            kept: Older ones that are kept.
            clock: Tells when to look whether it is still there.
        """
        self._path, self._bytes_max, self._kept = path, bytes_max, kept
        self._clock = clock
        self._descriptor: int | None = None
        self._size_bytes, self._looked_s = 0, 0.0

    def of_kind(self, kind: str) -> "AuditFile":
        """Return the file of other lines next to this one: `audit-refused.jsonl`."""
        path = self._path.with_name(f"{self._path.stem}-{kind}{self._path.suffix}")
        return AuditFile(path, self._bytes_max, self._kept, self._clock)

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines, whole ones.

        Raises:
            OSError: They were not written, or not all of them.
        """
        try:
            self._append(b"".join(line + b"\n" for line in lines))
        except OSError:
            self.close()
            raise

    def _append(self, whole: bytes) -> None:
        descriptor = self._opened()
        written = os.write(descriptor, whole)
        self._size_bytes += written
        if written < len(whole):
            os.write(descriptor, b"\n")
            raise OSError(f"{written} of {len(whole)} bytes were written")

    def close(self) -> None:
        """Let the file go; the next line opens it again."""
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
        """Return whether the open file is still the one of that name."""
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
    """What metrics tell of the audit."""

    failures: int = 0
    """Lines that a place did not take."""


NoteLines = Callable[[Sequence[bytes], str], Awaitable[None]]
"""Appends lines to the stream of a kind; raises UnavailableError."""
REFUSED, READS = "refused", "reads"
"""Kinds of lines besides those of changes (the empty kind)."""


@dataclass(slots=True)
class _EarlyRefusals:
    """How many refusals of a caller may be kept now, and how many were not."""

    left: float = float(EARLY_BURST)
    at_s: float = 0.0
    left_out: int = 0


class Audit:
    """Both places of the audit of one gateway. For one event loop."""

    def __init__(
        self, file: AuditFile | None, note_lines: NoteLines, clock: Clock, log: Log
    ) -> None:
        """Write nothing yet.

        Args:
            file: None: there is only the stream.
            note_lines: Appends to the stream.
            clock: Tells when an entry came.
            log: Hears when a place does not take a line.
        """
        self._file, self._note_lines, self._log = file, note_lines, log
        self._files: dict[str, AuditFile] = {}
        if file is not None:
            self._files = {"": file, **{kind: file.of_kind(kind) for kind in (REFUSED, READS)}}
        self._clock = clock
        self._ended: dict[str, list[bytes]] = {}
        """Last lines that are on their way into the files, by kind."""
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Kind and line of what is on its way into the streams."""
        self._hurry = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._fault = ""
        self._early: BoundedMap[str, _EarlyRefusals] = BoundedMap(EARLY_CALLERS_MAX)
        self.counts = AuditCounts()

    def now_s(self) -> float:
        """Return the time of an entry that begins now."""
        return self._clock.now_s()

    async def begin(self, entry: AuditEntry) -> None:
        """Keep the first line of a call.

        Raises:
            UnavailableError: No place takes it, so that the call must not be made.
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
                " store both fail (the log of the gateway tells why)"
            ) from error

    def end(self, entry: AuditEntry) -> None:
        """Keep the outcome of a call that was let in, soon: until then `begun` is told of it."""
        self._keep(entry, "", REFUSED if entry.outcome == REFUSED else "")

    def end_read(self, entry: AuditEntry) -> None:
        """Keep a call that has read rows or paths; nothing was kept when it began."""
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
        """Keep a call that was refused at the door; of a flood of them, how many there were."""
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
            said = f"{early.left_out} others like it were left out before; {entry.details}"
            entry = replace(entry, details=said)
            early.left_out = 0
        self._keep(entry, REFUSED, REFUSED)

    async def close(self) -> None:
        """Give what waits a moment to be written, and let the file go."""
        self._hurry.set()
        if self._sending is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._sending
        for file in self._files.values():
            file.close()

    def _to_file(self, lines: Sequence[bytes], kind: str = "") -> bool:
        """Write to the file of a kind; return whether it has taken the lines."""
        if self._file is None:
            return False
        try:
            self._files[kind].write(lines)
        except OSError as error:
            self._fails("file", str(error))
            return False
        self._works()
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
            batch = list(takewhile(lambda each: each[0] == stream, islice(self._waiting, BATCH)))  # noqa: B023  used up here
            try:
                await self._note_lines([line for _, line in batch], stream)
            except UnavailableError as error:
                self._fails("stream", str(error))
                await asyncio.sleep(RETRY_S)
                continue
            # While it was sent, the oldest may have had to go.
            for each in batch:
                if self._waiting and self._waiting[0] is each:
                    self._waiting.popleft()

    def _fails(self, place: str, cause: str) -> None:
        self.counts.failures += 1
        if self._fault != place:
            self._log("audit not written", place=place, cause=cause)
        self._fault = place

    def _works(self) -> None:
        if self._fault == "file":
            self._fault = ""
