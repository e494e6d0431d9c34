"""A specification from a running service: what if this table had another planner?

What is taken over: the files as they are now, with sizes, rows, times, tags and the order of their
keys; the settings of the table; what has come lately, played again and again; how long jobs took.
Compactors of all groups count as those of one group, since the service does not tell which sizes of
jobs each of them takes.
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
"""So far back is looked for what has come."""
HISTORY_MAX = 10_000
"""Attempts that a service tells of at a time: a full answer does not reach back further."""
SLOT_BYTES_S = 50e6
"""Of a slot where no job has been done yet."""
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
    """Return a specification with the present planner and each of the others as variants.

    Args:
        table: With its settings.
        files: All of its files.
        history: Its newest finished attempts.
        groups: Of the service.
        compactors: Of the service.
        planners: Set beside the present one.
        settings: Of the variants; the present planner is never changed.
        now_s: The time now.

    Raises:
        RequestError: The table has no file, or there is nothing to compare.
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
    """Return a table as it is, and what comes to it."""
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
    """Return the present planner first, then what it is compared with."""
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
    """Return since when everything that came is known."""
    since_s = max(now_s - LATELY_S, table.created_at_s)
    if len(history) >= HISTORY_MAX:
        since_s = max(since_s, min(finished.started_s for finished in history))
    return min(since_s, now_s - 1.0)


def _kept_settings(table: Table) -> dict[str, Any]:
    """Return the settings that a simulation goes by."""
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
    """Return seconds per job and bytes per second of a slot, by least squares over past jobs."""
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
    if slope <= 0:  # Larger jobs did not take longer: all of it is overhead.
        return round(mean_s, 3), max(SLOT_BYTES_S, mean_bytes / mean_s)
    overhead_s = max(0.001, mean_s - slope * mean_bytes)
    moving_s = max(1e-6, mean_s - overhead_s)
    return round(overhead_s, 3), mean_bytes / moving_s
