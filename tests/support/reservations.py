"""Reservations as the store would make them of a job, and assignments made of them."""

from __future__ import annotations

from common.model.job import Job
from common.model.table import Table
from common.model.tablet import Bounds, Reservation
from common.wire import Assignment


def reservation_of(job: Job, attempt: str, compactor: str, now_s: float = 0.0) -> Reservation:
    """Return what the store holds for an attempt that began just now, of one output."""
    return Reservation(
        attempt=attempt,
        job=job.id,
        kind=job.kind,
        inputs=job.inputs,
        output_prefix=attempt,
        outputs_max=1,
        group=job.group,
        compactor=compactor,
        since_s=now_s,
        now_s=now_s,
    )


def assignment_of(job: Job, attempt: str, compactor: str, now_s: float = 0.0) -> Assignment:
    """Return what a compactor is given for an attempt that began just now."""
    tablet = job.tablet
    location = f"file:///{tablet.table}"
    return Assignment(
        job=job,
        reservation=reservation_of(job, attempt, compactor, now_s),
        table=Table(id=tablet.table, name=job.table_name, location=location, schema=()),
        bounds=Bounds(None, tablet.end),
        inputs=(),
        outside=(),
    )
