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
from statistics import fmean
from typing import Any

from common.documents import FieldKind, FieldRule, read_list, read_object
from common.errors import RequestError
from common.model.file import DataFile
from common.model.table import FIXED_SETTINGS
from common.plugins import DEFAULT_PLANNER
from neve.api import Compactor, File, Finished, Group, Table
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
    arrivals = [_arrival(entry, f"{where}.arrivals[{at}]") for at, entry in enumerate(entries)]
    for at, arrival in enumerate(arrivals):
        if arrival.tablet >= tablets or arrival.at_s > length_s:
            raise RequestError(
                f"{where}.arrivals[{at}] has at {arrival.at_s:g} and tablet {arrival.tablet}, "
                f"expected at most {length_s:g} and less than {tablets}"
            )
    return Recording(
        table=TEXT.read(body.get("table"), f"{where}.table"),
        tablets=tablets,
        length_s=length_s,
        arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)),
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
    _arrivals: dict[str, tuple[str, RecordedArrival]] = field(default_factory=dict)
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
            elif file.path not in self._arrivals:
                at_s = file.added_at_s - self.since_s
                arrival = RecordedArrival(at_s, 0, file.size_bytes, file.rows, file.tombstones)
                self._arrivals[file.path] = (file.tablet, arrival)

    def note_history(self, finished: Iterable[Finished]) -> None:
        """Record inputs of jobs that no listing has shown."""
        committed = [
            attempt for attempt in finished if attempt.outputs and attempt.started_s >= self.since_s
        ]
        outputs = {path for attempt in committed for path in attempt.outputs}
        self._before |= outputs
        for attempt in sorted(committed, key=lambda attempt: attempt.started_s):
            if attempt.attempt not in self._jobs:
                self._jobs.add(attempt.attempt)
                self._note_inputs(attempt)

    def _note_inputs(self, job: Finished) -> None:
        unknown = [
            path for path in job.inputs if path not in self._arrivals and path not in self._before
        ]
        if not unknown:
            return
        self._tablets.setdefault(job.tablet, len(self._tablets))
        size_bytes = max(1, job.bytes_in // max(1, len(job.inputs)))
        rows = max(1, job.rows_in // max(1, len(job.inputs)))
        at_s = max(0.0, job.started_s - self.since_s)
        for path in unknown:
            self._estimated += 1
            self._arrivals[path] = (job.tablet, RecordedArrival(at_s, 0, size_bytes, rows))

    def recording(self, until_s: float) -> Recording:
        """Return the arrivals so far.

        Args:
            until_s: The time now.
        """
        length_s = max(1.0, until_s - self.since_s)
        arrivals = [
            replace(arrival, tablet=self._tablets[tablet], at_s=min(arrival.at_s, length_s))
            for tablet, arrival in self._arrivals.values()
        ]
        return Recording(
            table=self.table,
            tablets=max(1, len(self._tablets)),
            length_s=length_s,
            arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)),
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
    files = [
        (number, file)
        for number, listed in enumerate(by_tablet.values())
        for file in _with_simulated_keys([*read_document(listed).files.values()])
    ]
    return tuple(files), max(1, len(by_tablet))


def _with_simulated_keys(files: Sequence[DataFile]) -> list[DataFile]:
    """Return a tablet's files with keys by rank, because the distances of keys are unknown."""
    bounds = sorted(
        {key for file in files for key in (file.key_min, file.key_max) if key is not None}
    )
    return [
        replace(
            file,
            key_min=simulated_key(_fraction(bounds, file.key_min, 0.0)),
            key_max=simulated_key(_fraction(bounds, file.key_max, 1.0)),
        )
        for file in files
    ]


def _fraction(bounds: Sequence[bytes], key: bytes | None, default: float) -> float:
    if key is None or len(bounds) < 2:
        return default
    return bisect_left(bounds, key) / (len(bounds) - 1)


def simulated_key(fraction: float) -> bytes:
    """Return the key at a fraction of the key range of a simulated tablet."""
    return b"\x01" + (round(fraction * KEY_STEPS) + (1 << 63)).to_bytes(8, "big")


def key_behind(fraction: float) -> bytes:
    """Return the key after the one at a fraction of the key range of a simulated tablet."""
    return simulated_key(fraction + 1 / KEY_STEPS)


def key_fraction(key: bytes | None, default: float) -> float:
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


# ------------------------------------------------------------------------------------------ Service
# Builds a specification from a running service, to try other planners on a table.
#
# The specification contains the current files with sizes, rows, times, tags and key order; the
# settings of the table; the recent arrivals, replayed repeatedly; and the speed of past jobs. The
# compactors of all groups form one group, because the service does not report which job sizes a
# group accepts.


LATELY_S = 86_400.0
"""Length of the period whose arrivals are used."""
HISTORY_MAX = 10_000
"""Maximum number of attempts in an answer; a full answer may omit older attempts."""
SLOT_BYTES_S = 50e6
"""Default speed of a slot without past jobs."""
OVERHEAD_S = 0.5
_NEVER = "400d"
_PRESENT = "as it is"


def described(
    table: Table,
    files: Sequence[File],
    history: Sequence[Finished],
    groups: Sequence[Group],
    compactors: Sequence[Compactor],
    *,
    planners: Sequence[str],
    settings: Mapping[str, str],
    now_s: float,
) -> dict[str, Any]:
    """Return a specification with the current planner and each other planner as variants.

    Args:
        table: The table with its settings.
        files: All files of the table.
        history: The newest finished attempts of the table.
        groups: Groups of the service.
        compactors: Compactors of the service.
        planners: Planners to compare with the current one.
        settings: Changed settings of the other variants; the current planner's variant keeps its
            own.
        now_s: The time now.

    Raises:
        RequestError: The table has no files.
    """
    if not files:
        raise RequestError(f"table {table.name} has no files, expected some to begin with")
    recorder = ArrivalRecorder(table.name, _since_s(table, history, now_s))
    recorder.note_files(files)
    recorder.note_history(history)
    own = str(table.settings.get("planner") or DEFAULT_PLANNER)
    overhead_s, slot_bytes_s = job_speed(history)
    return {
        "simulation": {"days": 7.0, "seed": 1, "begin_s": now_s},
        "table": [_table(table, files, recorder.recording(now_s), own)],
        "cluster": {
            "job_overhead": overhead_s,
            "group": [_group(groups, compactors, slot_bytes_s)],
        },
        "variant": _variants(own, planners, settings, _unfixed(table)),
    }


def _table(
    table: Table, files: Sequence[File], recording: Recording, planner: str
) -> dict[str, Any]:
    """Return the table in its current state, with its arrivals."""
    listed = json_listing(files)
    _, tablets = start_files(listed, "files")
    recorded = {"recorded": recording_document(recording)}
    return {
        "name": table.name,
        "tablets": max(tablets, recording.tablets, table.tablets or 1),
        "keyed": bool(table.key),
        "row_bytes": _row_bytes(files),
        "keys": max(1, round(sum(file.rows for file in files) / tablets)),
        "planner": planner,
        "settings": _kept_settings(table),
        "options": dict(table.settings.get("planner_options") or {}),
        "files": listed,
        "arrivals": recorded if recording.arrivals else {"every": _NEVER},
    }


def _unfixed(table: Table) -> dict[str, Any]:
    """Return the settings that a planner has fixed for a table, as they are in a new table."""
    return {name: 0 for name in sorted(FIXED_SETTINGS) if table.settings.get(name)}


def _variants(
    own: str, planners: Sequence[str], settings: Mapping[str, str], unfixed: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the variant of the current planner, then the variants to compare, as new tables."""
    if not planners and settings:
        planners = [own]
    changed = ", ".join(f"{name}={value}" for name, value in settings.items())
    return [
        {"name": f"{own} ({_PRESENT})"},
        *(
            {
                "name": f"{name} {changed}".strip(),
                "planner": name,
                "settings": {**unfixed, **settings},
            }
            for name in planners
        ),
    ]


def _since_s(table: Table, history: Sequence[Finished], now_s: float) -> float:
    """Return the time since when all arrivals are known."""
    since_s = max(now_s - LATELY_S, table.created_at_s)
    if len(history) >= HISTORY_MAX:
        since_s = max(since_s, min(finished.started_s for finished in history))
    return min(since_s, now_s - 1.0)


def _kept_settings(table: Table) -> dict[str, Any]:
    """Return the settings that a simulation uses."""
    left_out = {"planner", "planner_options"}
    if table.key:
        left_out.add("ttl_s")
    return {
        name: value
        for name, value in table.settings.items()
        if name not in left_out and value is not None
    }


def _row_bytes(files: Sequence[File]) -> int:
    rows = sum(file.rows for file in files)
    return max(1, sum(file.size_bytes for file in files) // max(1, rows))


def _group(
    groups: Sequence[Group], compactors: Sequence[Compactor], slot_bytes_s: float
) -> dict[str, Any]:
    least = sum(group.scaling.least for group in groups if group.scaling is not None)
    most = sum(group.scaling.most for group in groups if group.scaling is not None)
    count = len(compactors)
    return {
        "name": "default",
        "slots": max(1, round(fmean([compactor.slots for compactor in compactors] or [1]))),
        "compactors": {"min": least or min(count, 1), "max": max(most, count, 1)},
        "slot_bytes_s": max(1, round(slot_bytes_s)),
    }


def job_speed(history: Sequence[Finished]) -> tuple[float, float]:
    """Return the overhead per job in seconds and the bytes per second of a slot.

    Both are a least-squares fit over past jobs.
    """
    points = [
        (float(finished.bytes_in), finished.ended_s - finished.started_s)
        for finished in history
        if finished.bytes_in and finished.ended_s > finished.started_s and finished.outputs
    ]
    if len(points) < 2:
        return OVERHEAD_S, SLOT_BYTES_S
    mean_bytes, mean_s = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_bytes) ** 2 for x, _ in points)
    slope = sum((x - mean_bytes) * (y - mean_s) for x, y in points) / spread if spread else 0.0
    if slope <= 0:  # Larger jobs did not take longer, so all time is overhead.
        return round(mean_s, 3), max(SLOT_BYTES_S, mean_bytes / mean_s)
    overhead_s = max(0.001, mean_s - slope * mean_bytes)
    moving_s = max(1e-6, mean_s - overhead_s)
    return round(overhead_s, 3), mean_bytes / moving_s
