"""Builds a specification from a running service, to try other planners on a table.

The specification contains the current files with sizes, rows, times, tags and key order; the
settings of the table; the recent arrivals, replayed repeatedly; and the speed of past jobs. The
compactors of all groups form one group, because the service does not report which job sizes a group
accepts.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from common.errors import RequestError
from common.plugins import DEFAULT_PLANNER
from neve.api import Compactor, File, Finished, Group, Table
from neve.simulate.recording import (
    ArrivalRecorder,
    Recording,
    json_listing,
    recording_document,
    start_files,
)

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
        "variant": _variants(own, planners, settings),
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


def _variants(
    own: str, planners: Sequence[str], settings: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the variant of the current planner, then the variants to compare."""
    if not planners and settings:
        planners = [own]
    changed = ", ".join(f"{name}={value}" for name, value in settings.items())
    return [
        {"name": f"{own} ({_PRESENT})"},
        *(
            {
                "name": f"{name} {changed}".strip(),
                "planner": name,
                "settings": dict(settings),
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
    there = len(compactors)
    return {
        "name": "default",
        "slots": max(1, round(fmean([compactor.slots for compactor in compactors] or [1]))),
        "compactors": {"min": least or min(there, 1), "max": max(most, there, 1)},
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
