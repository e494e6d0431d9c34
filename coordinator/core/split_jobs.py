"""Jobs that cut files at the key where a tablet is being split. Pure.

No other jobs are planned for such a tablet. A file that crosses the key must be rewritten once,
so a job merges as many crossing files as it may take. The other files are not compacted until the
split has ended, which takes a short time only.
"""

from collections.abc import Sequence

from common.model.file import DataFile, may_cross
from common.model.group import Group, Service
from common.model.job import Job, Kind, TabletPlan, cut_priority, job_id
from common.model.table import Table
from common.model.tablet import (
    Operation,
    OperationKind,
    OperationStep,
    Tablet,
)
from common.units import format_bytes


def is_cutting(operation: Operation | None) -> bool:
    """Return whether an operation is a split that waits until no file crosses its key."""
    return (
        operation is not None
        and operation.kind is OperationKind.SPLIT
        and operation.step is OperationStep.CUT
        and operation.at is not None
    )


def crossing_files(tablet: Tablet) -> tuple[DataFile, ...]:
    """Return the files that cross the split key of a tablet, ordered by size and path."""
    operation = tablet.operation
    if operation is None or operation.at is None or operation.kind is OperationKind.MERGE:
        return ()
    over = [file for file in tablet.files.values() if may_cross(file, operation.at)]
    return tuple(sorted(over, key=lambda file: (file.size_bytes, file.path)))


def cut_plan(tablet: Tablet, table: Table, service: Service) -> TabletPlan:
    """Return the jobs that cut the crossing files, and why each other file was left.

    The same files always form the same job, so that its failures can be counted.

    Args:
        tablet: A tablet whose operation `is_cutting`.
        table: Its table.
        service: Service with the groups, and optionally the option `max_files`.
    """
    operation = tablet.operation
    assert operation is not None, tablet.id
    assert operation.at is not None, tablet.id
    left = dict.fromkeys(tablet.files, "lies entirely on one side of the split key")
    free: list[DataFile] = []
    held = {path: attempt for attempt, each in tablet.running.items() for path in each.inputs}
    for file in crossing_files(tablet):
        if file.path in held:
            left[file.path] = f"being merged by {held[file.path]}"
        elif file.open:
            left[file.path] = "still being written, but crosses the split key"
        else:
            free.append(file)
            del left[file.path]
    jobs = [
        _split_job(tablet, table, operation.at, chosen, service.groups)
        for chosen in _chunks(free, _files_max(table, service), service.groups[-1].max_bytes)
    ]
    left.update((path, f"being merged by {attempt}") for path, attempt in held.items())
    return TabletPlan(jobs=tuple(jobs), left=left)


def _files_max(table: Table, service: Service) -> int:
    option = service.options.get("max_files")
    return option if isinstance(option, int) else table.settings.max_files


def _chunks(
    files: Sequence[DataFile], files_max: int, bytes_max: int | None
) -> list[list[DataFile]]:
    """Return files in chunks of bounded count and bytes; a large file forms its own chunk."""
    chunks: list[list[DataFile]] = []
    size = 0
    for file in files:
        full = not chunks or len(chunks[-1]) >= files_max
        if full or (bytes_max is not None and size + file.size_bytes >= bytes_max):
            chunks.append([])
            size = 0
        chunks[-1].append(file)
        size += file.size_bytes
    return chunks


def _split_job(
    tablet: Tablet, table: Table, at: bytes, files: Sequence[DataFile], groups: Sequence[Group]
) -> Job:
    inputs = tuple(sorted(file.path for file in files))
    size = sum(file.size_bytes for file in files)
    fits = (group for group in groups if group.max_bytes is None or size < group.max_bytes)
    what = "1 file" if len(files) == 1 else f"{len(files)} files"
    return Job(
        id=job_id(tablet.id, Kind.SYSTEM, None, inputs, (at,)),
        tablet=tablet.id,
        table_name=table.name,
        kind=Kind.SYSTEM,
        inputs=inputs,
        input_bytes=size,
        group=next(fits, groups[-1]).name,
        priority=cut_priority(len(files)),
        reason=f"cut at the split key: {what} of {format_bytes(size)}",
        outputs_expected=2,
        cuts=(at,),
    )
