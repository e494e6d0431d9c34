"""Reservations as the store would make them of a job."""

from __future__ import annotations

from common.model.job import Job
from common.model.tablet import Reservation


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
