"""Every event that the service logs, with its level: part of the interface, as metrics are.

An operator's alerts match these names. The table is the only list: the log takes the level
from it, the reference page prints it, and a test finds an event that it lacks.
"""

from dataclasses import dataclass
from enum import StrEnum


class LogLevel(StrEnum):
    """How much an event matters to an operator."""

    DEBUG = "debug"
    INFO = "info"
    """Something was done, as it should be."""
    WARNING = "warning"
    """Something failed that is tried again, or that one table, job or caller suffers from."""
    ERROR = "error"
    """A part of the service ends, data are in danger, or somebody has to act."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One kind of event."""

    name: str
    level: LogLevel
    meaning: str


_I, _W, _E = LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR

COORDINATOR_EVENTS = (
    LogEvent("coordinator leads", _I, "A coordinator has claimed the store and begins to work."),
    LogEvent("coordinator leaves", _I, "It ends because it was told to."),
    LogEvent("coordinator fails", _E, "A loop of it ended; its process ends and is started again."),
    LogEvent("claim was lost", _E, "Another coordinator has claimed the store; this one ends."),
    LogEvent("lead not checked", _W, "The store did not say who leads; it is asked again."),
    LogEvent("start waits for the store", _W, "A coordinator that starts cannot reach the store."),
    LogEvent("compactor silent", _W, "A compactor's heartbeats have stopped."),
    LogEvent("compactor gone", _W, "A compactor's process has ended; its jobs are planned anew."),
    LogEvent("reservation orphaned", _W, "The attempt that held a job is gone; it is released."),
    LogEvent("release not answered", _W, "The store did not say whether a job was released."),
    LogEvent("release refused", _W, "A job could not be released."),
    LogEvent("attempt failed", _W, "A job failed; it is tried again after a pause."),
    LogEvent("job quarantined", _E, "A job failed so often that its tablet is left alone."),
    LogEvent("file quarantined", _E, "A file cannot be read; jobs leave it alone."),
    LogEvent("quarantined, cannot be read", _E, "A record in the store is damaged."),
    LogEvent("can be read again", _I, "A record that was damaged is sound again."),
    LogEvent("work on a table failed", _W, "An unexpected error; the table rests for a while."),
    LogEvent("planning failed", _W, "A planner raised an error for a tablet."),
    LogEvent("planning waits for the store", _W, "Tablets could not be read; they are read again."),
    LogEvent("analyses not written", _W, "Results of planners could not be stored."),
    LogEvent("change feed waits for the store", _W, "Changes of tables could not be read."),
    LogEvent("changes missed", _W, "More changed than the feed keeps; the table is read whole."),
    LogEvent("change cannot be read", _W, "An entry of the feed is damaged; it is skipped."),
    LogEvent("list of tables waits for the store", _W, "The tables could not be listed."),
    LogEvent("full scan of a table failed", _W, "It is tried again with the next full scan."),
    LogEvent("piece of a full scan failed", _W, "It is tried again, or its table is."),
    LogEvent("limit set", _I, "An operator has set the throughput limit of a group or volume."),
    LogEvent("limits not read", _W, "Limits could not be read; those known stay in force."),
    LogEvent("store needs care", _W, "The store's own settings or memory endanger data."),
    LogEvent("store not looked at", _W, "The store did not tell how it is."),
    LogEvent("requests wait for the store", _W, "Requests of a table could not be read."),
    LogEvent("request moves on", _I, "A user's request has reached its next state."),
    LogEvent("request step taken", _I, "A request has taken a step in one tablet."),
    LogEvent("request step not taken", _W, "The step was refused; it is decided anew."),
    LogEvent("selector of a table failed", _W, "A selector raised an error or took too long."),
    LogEvent("automatic request made", _I, "A table's selector has asked for a compaction."),
    LogEvent("automatic request not made", _W, "What it asked for was refused."),
    LogEvent("split begins", _I, "A tablet is being split."),
    LogEvent("merge begins", _I, "Two tablets are being merged."),
    LogEvent("split not begun", _W, "A split was refused."),
    LogEvent("merge not begun", _W, "A merge was refused."),
    LogEvent("operation moves on", _I, "A split or merge has taken a step."),
    LogEvent("operation step not taken", _W, "The step was refused; it is decided anew."),
    LogEvent("operation waits for the store", _W, "A split or merge could not be read."),
    LogEvent("split waits for the store", _W, "A tablet that is too large could not be read."),
    LogEvent("sizes not looked at", _W, "Sizes of a table's tablets could not be read."),
    LogEvent("a quarantined tablet is not split", _W, "A tablet is too large and quarantined."),
    LogEvent("no key splits a tablet", _W, "All rows of a large tablet have the same key."),
    LogEvent("a file still written crosses", _I, "A split waits for a job that writes a file."),
    LogEvent("keys of a file not sampled", _W, "A file could not be read to find a split key."),
    LogEvent("files deleted", _I, "Files that nothing refers to were deleted."),
    LogEvent("file not deleted", _W, "A deletion failed; it is tried again."),
    LogEvent("file in garbage is in use", _E, "A file to be deleted is still visible; it is kept."),
    LogEvent("output may be the only copy", _E, "Output of a lost job is kept, not deleted."),
    LogEvent("collecting a table failed", _W, "Its garbage is collected with the next round."),
    LogEvent("location not readable", _W, "A table's location could not be read."),
    LogEvent("location belongs to another store", _E, "Nothing is written or deleted there."),
    LogEvent("manifest not published", _W, "It is published with the next round."),
    LogEvent("manifest took too long to write", _W, "It is outdated and was not published."),
    LogEvent("manifest not noted", _W, "It was written; the store did not take note of it."),
    LogEvent("store has gone back in time", _E, "The store lacks changes; its tables stand still."),
    LogEvent("table is read-only", _E, "A table takes no changes until an operator has decided."),
    LogEvent("generation not counted up", _W, "It is counted up with the next round."),
    LogEvent("table has no name", _W, "The rest of a creation that was broken off was found."),
    LogEvent("unfinished table removed", _I, "Such a rest was removed."),
    LogEvent("unfinished tables not looked for", _W, "They are looked for in the next round."),
)

COMPACTOR_EVENTS = (
    LogEvent("compactor begins", _I, "Its process has started."),
    LogEvent("attempt begins", _I, "A compactor begins with a job."),
    LogEvent("attempt ended", _I, "It has ended; `end` says how."),
    LogEvent("rewrite failed", _W, "A rewrite raised an error; `cause` is its message."),
    LogEvent("report not heard", _W, "The coordinator did not take a report; it is sent again."),
    LogEvent("heartbeat not heard", _W, "The coordinator did not take a heartbeat."),
    LogEvent("no job can be taken", _W, "The coordinator could not be asked for a job."),
    LogEvent("take withdrawn", _W, "A job was not taken because Spark had ended."),
    LogEvent("draining", _I, "A compactor takes no more jobs and finishes what it has."),
    LogEvent("jobs handed back", _I, "It shuts down; others take the jobs that still run."),
    LogEvent("node drains", _I, "Ray takes its node away; it hands its jobs back before."),
    LogEvent("compactor ends", _I, "It was shut down and is not started again."),
    LogEvent("stopped with attempts held", _W, "It ended before its jobs had ended."),
    LogEvent("left without goodbye", _W, "The coordinator did not hear that it ends."),
    LogEvent("compactor fails", _E, "A loop of it ended; its process ends and is started again."),
    LogEvent("engine restarted", _W, "Spark stood still and was started again."),
    LogEvent("a thread has failed", _E, "The Spark driver ends and is started again."),
    LogEvent("the JVM has ended", _E, "The Spark driver ends and is started again."),
    LogEvent("the Spark application has ended", _E, "The driver ends and is started again."),
    LogEvent("no executor has come back", _E, "The Spark driver ends and is started again."),
)

GATEWAY_EVENTS = (
    LogEvent("gateway begins", _I, "Its process has started."),
    LogEvent("request failed", _W, "A call failed in a way nobody expected; it was answered 500."),
    LogEvent("scan failed", _W, "The rows of a scan could not all be sent."),
    LogEvent("memory is short", _W, "A call needed more memory than there is; answered 503."),
    LogEvent("background work failed", _W, "Work that no caller waits for has failed."),
    LogEvent("an answer is not taken", _W, "A caller did not read its answer; it was cut off."),
    LogEvent("too many connections", _W, "Connections above the bound were refused."),
    LogEvent("gateway fails", _E, "It ended; its process ends and is started again."),
)

SHARED_EVENTS = (
    LogEvent("store does not answer", _W, "Redis cannot be reached; everything waits for it."),
    LogEvent("store answers again", _I, "Redis can be reached again."),
    LogEvent("reader died", _W, "A process that reads files of others ended; it is replaced."),
)

SUPERVISOR_EVENTS = (
    LogEvent("part is down", _W, "A part of a local stack has ended or stands still."),
    LogEvent("part does not start", _E, "It could not be started again; it is tried again."),
    LogEvent("part is up again", _I, "It was started again."),
    LogEvent("step", _I, "What is done to start it."),
    LogEvent("supervisor ends", _I, "The stack is down, so nothing is left to look after."),
)

EVENTS_BY_PART = {
    "coordinator": COORDINATOR_EVENTS,
    "compactor": COMPACTOR_EVENTS,
    "gateway": GATEWAY_EVENTS,
    "coordinator and gateway": SHARED_EVENTS,
    "supervisor": SUPERVISOR_EVENTS,
}
_LEVELS = {event.name: event.level for events in EVENTS_BY_PART.values() for event in events}


def level_of(event: str) -> LogLevel:
    """Return the level of an event; one that no table has is informative."""
    return _LEVELS.get(event, LogLevel.INFO)
