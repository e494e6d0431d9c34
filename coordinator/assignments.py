"""What a compactor is given with a reserved job: a value made from the tablet as reserved."""

from common.model.job import Job
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import Reservation, Tablet, TabletId
from common.rows.partitions import partition_folder
from common.wire import Assignment, OutsideFile
from coordinator.core.settle import droppable

OUTPUT_FOLDER = "_neve"


def tablet_folder(tablet: TabletId) -> str:
    """Return the folder of a tablet's job outputs, below the table's location.

    Long ends are cut and told apart by the attempt in the file's name: the folder is
    for people; ownership is what the keys say.
    """
    return f"{OUTPUT_FOLDER}/{tablet.text[:48]}"


def output_prefix(job: Job, attempt: str) -> str:
    """Return the path prefix of an attempt's outputs: job and attempt are in the name.

    The partition's folders are in it, so that engines that know hive paths read outputs
    and files of users alike.
    """
    folder = f"{tablet_folder(job.tablet)}/{partition_folder(job.partition)}"
    return f"{folder}{job.id}-{attempt}"


def compose(
    job: Job,
    reservation: Reservation,
    table: Table,
    tablet: Tablet,
    now_s: float,
    *,
    request: Request | None = None,
) -> Assignment:
    """Return the assignment of a reserved job.

    Args:
        job: The job as it left the queue.
        reservation: What the store has written.
        table: The table as it is now.
        tablet: The tablet as it was read under the reservation's `WATCH`.
        now_s: For the retention of tombstones.
        request: For kind USER: the request that the job is of. Without it, the job fails.
    """
    held, record = frozenset(reservation.inputs), tablet.record
    outside = tuple(
        OutsideFile(
            path=file.path,
            key_min=file.key_min,
            key_max=file.key_max,
            version_min=file.version_min,
        )
        for path, file in sorted(tablet.files.items())
        if path not in held
    )
    return Assignment(
        job=job,
        reservation=reservation,
        table=table,
        bounds=tablet.bounds,
        inputs=tuple(tablet.files[path] for path in reservation.inputs),
        outside=outside,
        settled=droppable(table, record, now_s),
        purge=tablet.purge,
        request=request,
        halvings=record.halvings if record.halved_job == job.id else 0,
    )
