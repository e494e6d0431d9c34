"""Why is a tablet as it is? One sentence per rule that applies, most telling first."""

from common.model.job import Job
from common.model.table import TableState
from common.model.tablet import TabletId
from common.units import format_bytes
from common.wire import Explanation
from coordinator.core.books import Books
from coordinator.core.deferral import table_of_place
from coordinator.core.dividing import UNLIMITED
from coordinator.core.lifecycle import AttemptState
from coordinator.core.notes import Note
from coordinator.core.volumes import shut_tables

_STATES = {
    AttemptState.RUNNING: "runs on",
    AttemptState.FOUND: "is reserved in the store and not yet reported by",
    AttemptState.DOUBTFUL: "may be reserved, for",
    AttemptState.RELEASING: "is being released, which ran on",
}


def explain(books: Books, tablet: TabletId, now_s: float) -> Explanation:
    """Return why a tablet is as it is.

    Args:
        books: Only read.
        tablet: Any; one that was never seen is said to be so.
        now_s: The time now.
    """
    note = books.notes.get(tablet)
    queued = books.queues.jobs_of(tablet)
    pauses = books.retry.of_tablet(tablet, now_s)
    sentences = [
        *_of_table(books, tablet),
        *(f"{pause.reason} ({_until(pause.until_s, now_s)})" for pause in pauses),
        *_of_attempts(books, tablet, now_s),
        *_of_throttle(books, tablet),
        *(() if note is None else note.holds),
        *_of_queue(books, queued),
        *_of_deferral(books, tablet, now_s),
        *_of_plan(note, now_s, busy=bool(queued)),
    ]
    said = {pause.reason for pause in pauses}
    return Explanation(
        tablet=tablet.text,
        table_name=books.table_name(tablet.table),
        sentences=tuple(dict.fromkeys(each for each in sentences if each not in said)),
        left={} if note is None else dict(note.left),
        queued=tuple(job.id for job in queued),
        running=tuple(attempt.id for attempt in books.attempts.of_tablet(tablet)),
    )


def _of_table(books: Books, tablet: TabletId) -> list[str]:
    table = books.tables.get(tablet.table)
    if table is None:
        return [f"table {tablet.table} is not known (yet)"]
    if table.state is not TableState.LIVE:
        return [f"table {table.name} is {table.state.value}: no job is handed out"]
    return []


def _of_attempts(books: Books, tablet: TabletId, now_s: float) -> list[str]:
    return [
        f"a job over {len(attempt.inputs)} files {_STATES[attempt.state]} {attempt.compactor}"
        f", for {_ago(now_s - attempt.since_s)}"
        for attempt in books.attempts.of_tablet(tablet)
    ]


def _of_throttle(books: Books, tablet: TabletId) -> list[str]:
    sentences = []
    for attempt in books.attempts.of_tablet(tablet):
        holder = books.grants.holder(attempt.id)
        if holder is not None and holder.throttled and holder.applied_bytes_s < UNLIMITED:
            limits = [
                f"{scope.kind} {scope.name} may move {format_bytes(rate)}/s"
                for scope in holder.scopes
                if (rate := books.grants.scopes.rate(scope)) is not None
            ]
            granted = f"{format_bytes(holder.applied_bytes_s)}/s"
            sentences.append(f"the job is throttled to {granted}: {', '.join(limits)}")
    return sentences


def _of_queue(books: Books, queued: tuple[Job, ...]) -> list[str]:
    sentences: list[str] = []
    for job in queued:
        why = _why_waiting(books, job)
        files = f"a job over {len(job.inputs)} files is queued in group {job.group}"
        sentences.append(f"{files}: {why} ({job.reason})")
    return sentences


def _why_waiting(books: Books, job: Job) -> str:
    group = job.group
    if group in books.paused_groups:
        return "the group is paused"
    if (unserved := books.unserved(group)) is not None:
        return unserved
    full = books.capacity.full(group)
    if full is not None:
        return full
    if job.tablet.table in shut_tables(books):
        volume, most = books.volume_of(job.tablet.table), books.limits.volume_running_max
        return f"volume {volume} runs {most} jobs, as many as it may"
    if not books.capacity.fits(group, job.input_bytes):
        under_way = format_bytes(books.capacity.input_bytes(group))
        size = format_bytes(job.input_bytes)
        return f"its {size} do not fit beside the {under_way} that the group has under way"
    first = books.overtaking.waits_for(group)
    if first is not None and first.id != job.id and job.priority <= first.priority:
        return "a larger job that others have passed goes first"
    return f"{len(books.queues.queue(group))} jobs wait for a free slot"


def _of_deferral(books: Books, tablet: TabletId, now_s: float) -> list[str]:
    place, since_s = books.deferrals.place_of(tablet), books.deferrals.since_s(tablet)
    if place is None or since_s is None or table_of_place(place):
        return []
    return [
        f"jobs were shed from the full queue of group {place} {_ago(now_s - since_s)} ago;"
        " they are planned again when it has room"
    ]


def _of_plan(note: Note | None, now_s: float, *, busy: bool) -> list[str]:
    if note is None:
        return ["it was not planned lately: it is at rest, or the next full scan looks at it"]
    when = f"{_ago(now_s - note.planned_s)} ago"
    if note.failure:
        return [f"its planner failed {when}: {note.failure}"]
    if note.held:
        return list(note.held)
    if not note.wanted:
        return [f"its planner wanted nothing {when}"]
    return [] if busy else [f"its planner wanted {note.wanted} jobs {when}"]


def _until(until_s: float | None, now_s: float) -> str:
    return "until it is lifted" if until_s is None else f"for {_ago(until_s - now_s)} more"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
