"""Arrivals of a running service: recorded, written and read; and the service's files.

A recording is a JSON document:

    {"table": "events", "tablets": 16, "length_s": 3600, "estimated": 0,
     "arrivals": [{"at": 0.4, "tablet": 3, "size": 8388608, "rows": 1000, "tombstones": 0}, …]}

`at` is the time since the beginning of the recording, in seconds. A file that was compacted between
two listings appears in the history only. Its time is the start of the job, and its size is the mean
input size of the job. `estimated` counts such files.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from common.documents import FieldKind, FieldRule, read_list, read_object
from common.errors import RequestError
from common.model.file import DataFile
from neve.api import File, Finished
from neve.offline import COUNT, TEXT, read_document

ARRIVALS_MAX = 2_000_000
FILES_MAX = 2_000_000
LENGTH_MAX_S = 400 * 86_400.0
_LENGTH = FieldRule(kind=FieldKind.NUMBER, least=1, most=LENGTH_MAX_S)
_AT = FieldRule(kind=FieldKind.NUMBER, least=0)
_FIELDS = frozenset({"table", "tablets", "length_s", "estimated", "arrivals"})
_ARRIVAL_FIELDS = frozenset({"at", "tablet", "size", "rows", "tombstones"})
KEY_STEPS = 1 << 40
"""Largest key of a simulated tablet; keys are whole numbers."""


@dataclass(frozen=True, slots=True)
class RecordedArrival:
    """One file that arrived."""

    at_s: float
    tablet: int
    size_bytes: int
    rows: int
    tombstones: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The arrivals of a period, ordered by time."""

    table: str
    tablets: int
    length_s: float
    arrivals: tuple[RecordedArrival, ...]
    estimated: int = 0
    """Number of arrivals with an estimated time and size."""


# ------------------------------------------------------------------------------ Reading and writing


def read_recording(document: object, where: str) -> Recording:
    """Read a recording from a document.

    Raises:
        RequestError: Names the position, the value and what was expected.
    """
    body = read_object(document, where, _FIELDS)
    length_s = _LENGTH.read(body.get("length_s"), f"{where}.length_s")
    tablets = COUNT.read(body.get("tablets"), f"{where}.tablets")
    entries = read_list(body.get("arrivals"), f"{where}.arrivals")
    if not 1 <= len(entries) <= ARRIVALS_MAX:
        raise RequestError(
            f"{where}.arrivals has {len(entries):,} entries, expected 1 to {ARRIVALS_MAX:,}"
        )
    found = [_arrival(each, f"{where}.arrivals[{at}]") for at, each in enumerate(entries)]
    for at, each in enumerate(found):
        if each.tablet >= tablets or each.at_s > length_s:
            raise RequestError(
                f"{where}.arrivals[{at}] has at {each.at_s:g} and tablet {each.tablet}, "
                f"expected at most {length_s:g} and less than {tablets}"
            )
    return Recording(
        table=TEXT.read(body.get("table"), f"{where}.table"),
        tablets=tablets,
        length_s=length_s,
        arrivals=tuple(sorted(found, key=lambda each: each.at_s)),
        estimated=COUNT.read(body.get("estimated", 0), f"{where}.estimated"),
    )


def _arrival(entry: object, where: str) -> RecordedArrival:
    body = read_object(entry, where, _ARRIVAL_FIELDS)
    return RecordedArrival(
        at_s=_AT.read(body.get("at"), f"{where}.at"),
        tablet=COUNT.read(body.get("tablet", 0), f"{where}.tablet"),
        size_bytes=COUNT.read(body.get("size"), f"{where}.size"),
        rows=max(1, COUNT.read(body.get("rows", 1), f"{where}.rows")),
        tombstones=COUNT.read(body.get("tombstones", 0), f"{where}.tombstones"),
    )


def recording_document(recording: Recording) -> dict[str, Any]:
    """Return a recording as a document for `read_recording`."""
    return {
        "table": recording.table,
        "tablets": recording.tablets,
        "length_s": recording.length_s,
        "estimated": recording.estimated,
        "arrivals": [
            {
                "at": round(arrival.at_s, 3),
                "tablet": arrival.tablet,
                "size": arrival.size_bytes,
                "rows": arrival.rows,
                "tombstones": arrival.tombstones,
            }
            for arrival in recording.arrivals
        ],
    }


# ---------------------------------------------------------------------------------------- Recording


@dataclass(slots=True)
class ArrivalRecorder:
    """Records the arrivals of a table from listings of its files and from its history.

    Invariant: a file counts once, whether it was seen in a listing or in a job.
    """

    table: str
    since_s: float
    _found: dict[str, tuple[str, RecordedArrival]] = field(default_factory=dict)
    """Path → tablet and arrival; the tablet number of the arrival is set in `recording`."""
    _before: set[str] = field(default_factory=set)
    """Files that are not arrivals: older than the recording, or outputs of jobs."""
    _jobs: set[str] = field(default_factory=set)
    _tablets: dict[str, int] = field(default_factory=dict)
    _estimated: int = 0

    def note_files(self, files: Iterable[File]) -> None:
        """Record the files of a listing."""
        for file in files:
            self._tablets.setdefault(file.tablet, len(self._tablets))
            if file.added_at_s < self.since_s or file.job is not None:
                self._before.add(file.path)
            elif file.path not in self._found:
                at_s = file.added_at_s - self.since_s
                arrival = RecordedArrival(at_s, 0, file.size_bytes, file.rows, file.tombstones)
                self._found[file.path] = (file.tablet, arrival)

    def note_history(self, finished: Iterable[Finished]) -> None:
        """Record inputs of jobs that no listing has shown."""
        committed = [each for each in finished if each.outputs and each.started_s >= self.since_s]
        made = {path for each in committed for path in each.outputs}
        self._before |= made
        for each in sorted(committed, key=lambda each: each.started_s):
            if each.attempt not in self._jobs:
                self._jobs.add(each.attempt)
                self._note_inputs(each)

    def _note_inputs(self, job: Finished) -> None:
        unknown = [
            path for path in job.inputs if path not in self._found and path not in self._before
        ]
        if not unknown:
            return
        self._tablets.setdefault(job.tablet, len(self._tablets))
        size_bytes = max(1, job.bytes_in // max(1, len(job.inputs)))
        rows = max(1, job.rows_in // max(1, len(job.inputs)))
        at_s = max(0.0, job.started_s - self.since_s)
        for path in unknown:
            self._estimated += 1
            self._found[path] = (job.tablet, RecordedArrival(at_s, 0, size_bytes, rows))

    def recording(self, until_s: float) -> Recording:
        """Return the arrivals so far.

        Args:
            until_s: The time now.
        """
        length_s = max(1.0, until_s - self.since_s)
        arrivals = [
            replace(arrival, tablet=self._tablets[tablet], at_s=min(arrival.at_s, length_s))
            for tablet, arrival in self._found.values()
        ]
        return Recording(
            table=self.table,
            tablets=max(1, len(self._tablets)),
            length_s=length_s,
            arrivals=tuple(sorted(arrivals, key=lambda each: each.at_s)),
            estimated=self._estimated,
        )


# --------------------------------------------------------------------------- Initial files of a run


def start_files(document: object, where: str) -> tuple[tuple[tuple[int, DataFile], ...], int]:
    """Return initial files with their tablet numbers, and the number of tablets.

    Args:
        document: A list in the format of `neve table files TABLE --json`.
        where: Name of the document, for error messages.

    Raises:
        RequestError: Names the position, the value and what was expected.
    """
    entries = read_list(document, where)
    if len(entries) > FILES_MAX:
        raise RequestError(f"{where} has {len(entries):,} files, expected at most {FILES_MAX:,}")
    by_tablet: dict[str, list[Any]] = {}
    for at, entry in enumerate(entries):
        body = read_object(entry, f"{where}[{at}]")
        by_tablet.setdefault(str(body.get("tablet", "")), []).append(body)
    found = [
        (number, file)
        for number, listed in enumerate(by_tablet.values())
        for file in _with_simulated_keys([*read_document(listed).files.values()])
    ]
    return tuple(found), max(1, len(by_tablet))


def _with_simulated_keys(files: Sequence[DataFile]) -> list[DataFile]:
    """Return a tablet's files with keys by rank, because the distances of keys are unknown."""
    bounds = sorted(
        {key for file in files for key in (file.key_min, file.key_max) if key is not None}
    )
    return [
        replace(
            file,
            key_min=simulated_key(_place(bounds, file.key_min, 0.0)),
            key_max=simulated_key(_place(bounds, file.key_max, 1.0)),
        )
        for file in files
    ]


def _place(bounds: Sequence[bytes], key: bytes | None, default: float) -> float:
    if key is None or len(bounds) < 2:
        return default
    return bisect_left(bounds, key) / (len(bounds) - 1)


def simulated_key(place: float) -> bytes:
    """Return the key at a fraction of the key range of a simulated tablet."""
    return b"\x01" + (round(place * KEY_STEPS) + (1 << 63)).to_bytes(8, "big")


def key_behind(place: float) -> bytes:
    """Return the key after the one at a fraction of the key range of a simulated tablet."""
    return simulated_key(place + 1 / KEY_STEPS)


def place_of_key(key: bytes | None, default: float) -> float:
    """Return the position of a key as a fraction of a simulated tablet's key range."""
    if key is None:
        return default
    number = int.from_bytes(key[1:9].ljust(8, b"\0"), "big") - (1 << 63)
    return min(max(number / KEY_STEPS, 0.0), 1.0)


def json_listing(files: Iterable[File]) -> list[Mapping[str, Any]]:
    """Return files of a service as a document for `start_files`."""
    return [
        {
            "path": file.path,
            "tablet": file.tablet,
            "size_bytes": file.size_bytes,
            "rows": file.rows,
            "tombstones": file.tombstones,
            "clean": file.clean,
            "added_at_s": file.added_at_s,
            "time_min_s": file.time_min_s,
            "time_max_s": file.time_max_s,
            "tags": file.tags,
            "key_min": file.key_min,
            "key_max": file.key_max,
        }
        for file in files
    ]
