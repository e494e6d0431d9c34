"""What the store and the coordinator tell, as wire models for users."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from common.metadata.ports import HistoryEntry
from common.model.fields import as_plain
from common.model.file import DataFile
from common.model.job import Job, TabletPlan
from common.model.key_values import KeyType, key_type_of
from common.model.keys import PLUS_INFINITY, format_key
from common.model.table import Table
from common.model.tablet import Record, Tablet
from common.wire import (
    CompactorStatus,
    CoordinatorStatus,
    Explanation,
    QueuedJob,
    RunningAttempt,
)
from neve.api import tables as tables_api
from neve.api import work as work_api
from neve.client.http import decode


def key_types(table: Table) -> tuple[KeyType, ...]:
    """Return the families of a table's key columns, in order."""
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTotals:
    """Sums over the tablets of a table; `rows` None: too many tablets to count them."""

    tablets: int = 0
    files: int = 0
    size_bytes: int = 0
    rows: int | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Tablets that are not counted: what of them cannot be decoded."""

    def without(self, unreadable: Mapping[str, str]) -> Self:
        """Return the totals with more tablets that are not counted."""
        return replace(self, unreadable={**self.unreadable, **unreadable})

    def plus(self, records: Sequence[Record]) -> Self:
        """Return the totals with more tablets."""
        return replace(
            self,
            tablets=self.tablets + len(records),
            files=self.files + sum(each.files for each in records),
            size_bytes=self.size_bytes + sum(each.size_bytes for each in records),
        )

    def plus_rows(self, rows: int) -> Self:
        """Return the totals with more rows."""
        return replace(self, rows=None if self.rows is None else self.rows + rows)

    def without_rows(self) -> Self:
        """Return the totals with rows uncounted."""
        return replace(self, rows=None)


def table_view(
    table: Table, totals: TableTotals | None = None, without_effect: Mapping[str, str] | None = None
) -> tables_api.Table:
    """Return a table for users.

    Args:
        table: As stored.
        totals: Of its tablets, if they were asked for.
        without_effect: Settings that nothing reads, and why.
    """
    return tables_api.Table(
        id=table.id,
        name=table.name,
        location=table.location,
        state=table.state.value,
        schema=tuple(
            tables_api.Column(name=each.name, type=each.type, nullable=each.nullable)
            for each in table.schema
        ),
        schema_id=table.schema_id,
        key=table.key,
        version_column=table.version_column,
        tombstone_column=table.tombstone_column,
        time_column=table.time_column,
        partition_by=table.partition_by,
        settings=as_plain(table.settings),
        settings_version=table.settings_version,
        created_at_s=table.created_at_s,
        without_effect=dict(without_effect or {}),
        **({} if totals is None else asdict(totals)),
    )


def file_view(file: DataFile, tablet: str, types: Sequence[KeyType]) -> tables_api.File:
    """Return a file for users.

    Args:
        file: As stored.
        tablet: Text of the tablet's end.
        types: Families of the key columns.
    """
    return tables_api.File(
        path=file.path,
        tablet=tablet,
        size_bytes=file.size_bytes,
        rows=file.rows,
        key_min=key_text(file.key_min, types),
        key_max=key_text(file.key_max, types),
        tombstones=file.tombstones,
        schema_id=file.schema_id,
        clean=file.clean,
        open=file.open,
        added_at_s=file.added_at_s,
        time_min_s=file.time_min_s,
        time_max_s=file.time_max_s,
        tags=dict(file.tags),
        job=file.job,
        request=file.request,
    )


def tablet_view(tablet: Tablet, types: Sequence[KeyType]) -> tables_api.Tablet:
    """Return a tablet for users.

    Args:
        tablet: As stored.
        types: Families of the key columns.
    """
    ranged = tablet.bounds.partition is None
    operation = tablet.operation
    return tables_api.Tablet(
        tablet=tablet.id.text,
        files=len(tablet.files),
        size_bytes=sum(each.size_bytes for each in tablet.files.values()),
        rows=sum(each.rows for each in tablet.files.values()),
        start=key_text(tablet.bounds.start, types) if ranged else None,
        end=key_text(tablet.bounds.end, types) if ranged else None,
        partition=tablet.bounds.partition,
        running=len(tablet.running),
        waiting=len(tablet.waiting),
        selected=tablet.selection is not None,
        operation=None if operation is None else f"{operation.kind.value} ({operation.step.value})",
        analysis=tablet.record.analysis.value,
        failures=tablet.record.failures,
        failure=tablet.record.failure,
    )


def key_text(key: bytes | None, types: Sequence[KeyType]) -> str | None:
    """Return a key as text that users can read and write; bytes of another type as hex."""
    if key is None:
        return None
    if key == PLUS_INFINITY:
        return "+inf"
    try:
        return format_key(key, types)
    except ValueError:
        return f"0x{key.hex()}"


def plan_view(table: Table, plans: Sequence[TabletPlan], running: int) -> work_api.Plan:
    """Return what would be planned for some tablets of a table.

    Args:
        table: As stored.
        plans: Of the tablets.
        running: Jobs under way on them.
    """
    jobs = [replace(_planned_view(job), table=table.name) for plan in plans for job in plan.jobs]
    left = {path: why for plan in plans for path, why in plan.left.items()}
    return work_api.Plan(jobs=tuple(jobs), left=left, running=running)


def queued_view(queued: QueuedJob) -> work_api.PlannedJob:
    """Return a queued job for users."""
    job = queued.job
    return replace(
        _planned_view(job), id=job.id, table=job.table_name, place=queued.place, age_s=queued.age_s
    )


def _planned_view(job: Job) -> work_api.PlannedJob:
    return work_api.PlannedJob(
        tablet=job.tablet.text,
        files=job.inputs,
        input_bytes=job.input_bytes,
        cost_bytes=job.cost_bytes,
        group=job.group,
        priority=job.priority,
        kind=job.kind.value,
        reason=job.reason,
    )


def job_view(running: RunningAttempt) -> work_api.Job:
    """Return a running job for users."""
    progress = running.progress
    return work_api.Job(
        id=running.job_id,
        attempt=running.attempt,
        table=running.table_name,
        tablet=running.tablet,
        kind=running.kind,
        group=running.group,
        compactor=running.compactor,
        inputs=running.inputs,
        input_bytes=running.input_bytes,
        since_s=running.since_s,
        state="" if progress is None else progress.state,
        fraction=0.0 if progress is None else progress.fraction,
        reason=running.reason,
        throttled=running.throttled,
        granted_bytes_s=None if progress is None else progress.granted_bytes_s,
        moved_bytes=0 if progress is None else progress.moved_bytes,
        waited_s=0.0 if progress is None else progress.waited_s,
        quiet_s=running.quiet_s,
    )


def finished_view(entry: HistoryEntry) -> work_api.Finished:
    """Return a finished attempt for users."""
    return decode(work_api.Finished, as_plain(entry) | {"tablet": entry.tablet.text})


def explanation_view(told: Explanation, table: Table) -> work_api.Explanation:
    """Return an explanation for users.

    Args:
        told: By the coordinator, who may know the table by its id only.
        table: Whose tablet it is about.
    """
    return decode(work_api.Explanation, asdict(told) | {"table": table.name})


def compactor_view(status: CompactorStatus) -> work_api.Compactor:
    """Return a compactor for users."""
    return decode(work_api.Compactor, asdict(status))


def status_view(status: CoordinatorStatus) -> work_api.Status:
    """Return the service as a whole for users."""
    return decode(work_api.Status, asdict(status))
