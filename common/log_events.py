"""Every event that the service logs, with its level. Event names are part of the interface.

Operators' alerts match these names. This table is the only list: the log takes levels from it,
the reference page prints it, and a test finds logged events that are missing here.
"""

from dataclasses import dataclass
from enum import StrEnum


class LogLevel(StrEnum):
    """How much an event matters to an operator."""

    DEBUG = "debug"
    INFO = "info"
    """A normal step succeeded."""
    WARNING = "warning"
    """A failure that is retried, or that affects a single table, job or caller."""
    ERROR = "error"
    """A part of the service ends, data is at risk, or an operator must act."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One kind of event."""

    name: str
    level: LogLevel
    meaning: str


_I, _W, _E = LogLevel.INFO, LogLevel.WARNING, LogLevel.ERROR

COORDINATOR_EVENTS = (
    LogEvent("coordinator leads", _I, "This coordinator has claimed the store and starts working."),
    LogEvent("coordinator leaves", _I, "This coordinator was shut down and ends."),
    LogEvent(
        "coordinator fails",
        _E,
        "A loop of the coordinator ended. The process ends and is restarted.",
    ),
    LogEvent("claim was lost", _E, "Another coordinator has claimed the store; this one ends."),
    LogEvent(
        "lead not checked",
        _W,
        "The store did not report which coordinator leads. It is asked again.",
    ),
    LogEvent("start waits for the store", _W, "A starting coordinator cannot reach the store."),
    LogEvent("group scaled", _I, "Compactors of a group were started or drained, and why."),
    LogEvent("group set", _I, "An operator has set the number of compactors of a group."),
    LogEvent(
        "compactor does not come up",
        _W,
        "A compactor could not be started, or sent no heartbeat in time. It is tried again later.",
    ),
    LogEvent("scaling fails", _W, "Redis or Ray did not answer the autoscaler, which retries."),
    LogEvent("compactor silent", _W, "A compactor's heartbeats have stopped."),
    LogEvent("compactor gone", _W, "A compactor's process has ended. Its jobs are planned again."),
    LogEvent(
        "reservation orphaned",
        _W,
        "The attempt that held a reservation is gone. The reservation is released.",
    ),
    LogEvent("release not answered", _W, "The store did not confirm the release of a reservation."),
    LogEvent("release refused", _W, "The store refused to release a reservation."),
    LogEvent("attempt failed", _W, "A job failed. It is retried after a pause."),
    LogEvent("job quarantined", _E, "A job failed so often that its tablet is no longer planned."),
    LogEvent("file quarantined", _E, "A file cannot be read. Jobs skip it."),
    LogEvent("quarantined, cannot be read", _E, "A record in the store is damaged."),
    LogEvent("can be read again", _I, "A record that was damaged can be read again."),
    LogEvent(
        "work on a table failed",
        _W,
        "Work on a table failed unexpectedly. It is skipped for a while.",
    ),
    LogEvent("planning failed", _W, "A planner raised an error for a tablet."),
    LogEvent(
        "planning waits for the store", _W, "Tablets could not be read. The coordinator retries."
    ),
    LogEvent("analyses not written", _W, "Results of planners could not be stored."),
    LogEvent("change feed waits for the store", _W, "Changes of tables could not be read."),
    LogEvent(
        "changes missed",
        _W,
        "Changes were lost from the feed before they were read. The whole table is read again.",
    ),
    LogEvent("change cannot be read", _W, "An entry of the feed is damaged and is skipped."),
    LogEvent("list of tables waits for the store", _W, "The tables could not be listed."),
    LogEvent(
        "full scan of a table failed",
        _W,
        "The full scan of a table failed. The next full scan retries it.",
    ),
    LogEvent(
        "piece of a full scan failed",
        _W,
        "Part of a full scan failed. The part or its table is retried.",
    ),
    LogEvent("trigger asks", _I, "A trigger makes the planner of a table plan all tablets."),
    LogEvent(
        "trigger is seen later",
        _W,
        "The store did not answer right after a trigger. The scanner checks again.",
    ),
    LogEvent("trigger waits", _W, "A trigger could not be stored. It is retried."),
    LogEvent("limit set", _I, "An operator has set the throughput limit of a group or volume."),
    LogEvent("limits not read", _W, "Limits could not be read. The last ones stay in force."),
    LogEvent(
        "series not read", _W, "Recorded values could not be read from the store. They begin anew."
    ),
    LogEvent(
        "series not written", _W, "Recorded values could not be stored. They are written later."
    ),
    LogEvent(
        "windows not read",
        _W,
        "The use of the budgets of windows could not be read. It is read again; if it is damaged, "
        "it begins anew.",
    ),
    LogEvent(
        "windows not written",
        _W,
        "The use of the budgets of windows could not be stored. It is written a second later.",
    ),
    LogEvent("store needs care", _W, "The settings or the memory of the store endanger data."),
    LogEvent("store not looked at", _W, "The state of the store could not be read."),
    LogEvent("requests wait for the store", _W, "Requests of a table could not be read."),
    LogEvent("request moves on", _I, "A request has reached its next state."),
    LogEvent("request step taken", _I, "A request has taken a step in one tablet."),
    LogEvent(
        "request step not taken", _W, "The store refused a step of a request. It is decided again."
    ),
    LogEvent("selector of a table failed", _W, "A selector raised an error or took too long."),
    LogEvent("automatic request made", _I, "A table's selector has asked for a compaction."),
    LogEvent(
        "automatic request not made",
        _W,
        "A compaction that a table's selector asked for was refused.",
    ),
    LogEvent("split begins", _I, "A tablet is being split."),
    LogEvent("merge begins", _I, "Two tablets are being merged."),
    LogEvent("split not begun", _W, "A split was refused."),
    LogEvent("merge not begun", _W, "A merge was refused."),
    LogEvent("operation moves on", _I, "A split or merge has taken a step."),
    LogEvent(
        "operation step not taken",
        _W,
        "The store refused a step of a split or merge. It is decided again.",
    ),
    LogEvent("operation waits for the store", _W, "A split or merge could not be read."),
    LogEvent("split waits for the store", _W, "A tablet that is too large could not be read."),
    LogEvent("sizes not looked at", _W, "Sizes of a table's tablets could not be read."),
    LogEvent(
        "a quarantined tablet is not split",
        _W,
        "A tablet is too large but in quarantine, so it is not split.",
    ),
    LogEvent("no key splits a tablet", _W, "All rows of a large tablet have the same key."),
    LogEvent("a file still written crosses", _I, "A split waits for a job that writes a file."),
    LogEvent("keys of a file not sampled", _W, "A file could not be read to find a split key."),
    LogEvent("mirror not moved", _W, "The mirror of a lake table stays. The next poll retries it."),
    LogEvent("columns of a lake table changed", _I, "The columns in the log have changed."),
    LogEvent("attempt has lost an input", _I, "Another writer replaced or removed an input."),
    LogEvent("attempt found in the log", _W, "An attempt had committed without reporting it."),
    LogEvent("attempt not looked for", _W, "The log did not answer before a release."),
    LogEvent(
        "outputs left to the vacuum of the table",
        _I,
        "A version may have had outputs of an ended attempt, so they are not deleted.",
    ),
    LogEvent("outputs of a lake table deleted", _I, "Outputs that no version has were deleted."),
    LogEvent(
        "version without changes committed",
        _I,
        "A lake table had no other writer for a day, and outputs waited for a newer version.",
    ),
    LogEvent(
        "lake table maintained",
        _I,
        "An operation of maintenance has run; `files` and `bytes` were freed.",
    ),
    LogEvent("lake table not maintained", _W, "Maintenance of a lake table failed or is refused."),
    LogEvent("outputs stay after detach", _W, "Outputs of a detached table are not deleted."),
    LogEvent("files deleted", _I, "Files that nothing refers to were deleted."),
    LogEvent("file not deleted", _W, "A file could not be deleted. The deletion is retried."),
    LogEvent("file in garbage is in use", _E, "A file due for deletion is in use; it is kept."),
    LogEvent(
        "output may be the only copy",
        _E,
        "The output of a lost job is kept because it may be the only copy of rows.",
    ),
    LogEvent(
        "collecting a table failed",
        _W,
        "Garbage of a table could not be collected. The next round retries it.",
    ),
    LogEvent("location not readable", _W, "A table's location could not be read."),
    LogEvent(
        "location belongs to another table",
        _E,
        "The marker of a location names a different table than the one whose files are due for"
        " deletion. Nothing is deleted there.",
    ),
    LogEvent(
        "location belongs to another store",
        _E,
        "A location belongs to another store. Nothing is written or deleted there.",
    ),
    LogEvent(
        "buffered rows flushed",
        _I,
        "Buffered rows of a table are in files now.",
    ),
    LogEvent(
        "manifest not published",
        _W,
        "A manifest could not be published. The next round retries it.",
    ),
    LogEvent(
        "manifest took too long to write",
        _W,
        "A manifest was outdated when it was written, and was not published.",
    ),
    LogEvent(
        "manifest not noted", _W, "A manifest was written, but the store could not record it."
    ),
    LogEvent(
        "store has gone back in time", _E, "The store lost changes. Its tables are read-only."
    ),
    LogEvent("table is read-only", _E, "A table refuses changes until an operator decides."),
    LogEvent(
        "generation not counted up",
        _W,
        "The generation of a table could not be incremented. The next round retries it.",
    ),
    LogEvent(
        "table has no name",
        _W,
        "A table has lost its name. The name is restored after `coordinator.garbage_grace_s`.",
    ),
    LogEvent("name given back to a table", _W, "The lost name of a table was restored."),
    LogEvent(
        "table needs an operator",
        _E,
        "A table needs a manual repair. The cause names the next step.",
    ),
    LogEvent(
        "unfinished table removed",
        _I,
        "Remains of an interrupted table creation were removed.",
    ),
    LogEvent(
        "unfinished tables not looked for",
        _W,
        "The search for unfinished tables failed. The next round retries it.",
    ),
)

COMPACTOR_EVENTS = (
    LogEvent("compactor begins", _I, "The process of a compactor has started."),
    LogEvent("attempt begins", _I, "A compactor starts an attempt."),
    LogEvent("attempt ended", _I, "An attempt has ended; `end` is its outcome."),
    LogEvent(
        "attempt published",
        _I,
        "Publishing in the log of a lake table has ended; `ending` says how, `version` where.",
    ),
    LogEvent(
        "attempt may not publish",
        _W,
        "An attempt at a lake table holds its reservation no more, is too old, or has lost its"
        " outputs.",
    ),
    LogEvent(
        "commit not answered",
        _W,
        "The log of a lake table did not answer a commit. The attempt is looked for in the log.",
    ),
    LogEvent(
        "commit not recorded",
        _W,
        "The store did not accept the end of an attempt that is in the log of its lake table. The"
        " coordinator finds it there.",
    ),
    LogEvent("rewrite failed", _W, "A rewrite raised an error; `cause` is its message."),
    LogEvent("report not heard", _W, "The coordinator did not accept a report. It is sent again."),
    LogEvent("heartbeat not heard", _W, "The coordinator did not accept a heartbeat."),
    LogEvent("no job can be taken", _W, "The compactor could not ask the coordinator for a job."),
    LogEvent("take withdrawn", _W, "A job was not taken because Spark had ended."),
    LogEvent("draining", _I, "A compactor takes no more jobs and finishes its running ones."),
    LogEvent(
        "jobs handed back", _I, "A compactor shuts down. Other compactors take its remaining jobs."
    ),
    LogEvent(
        "node drains",
        _I,
        "Ray removes the node of a compactor. The compactor hands its jobs back first.",
    ),
    LogEvent("compactor ends", _I, "A compactor was shut down and is not restarted."),
    LogEvent("stopped with attempts held", _W, "A compactor ended before its attempts."),
    LogEvent("left without goodbye", _W, "A compactor ends and could not notify the coordinator."),
    LogEvent(
        "compactor fails", _E, "A loop of a compactor ended. The process ends and is restarted."
    ),
    LogEvent("engine restarted", _W, "Spark made no progress and was restarted."),
    LogEvent(
        "a thread has failed",
        _E,
        "A thread of the Spark driver failed. The driver ends and is restarted.",
    ),
    LogEvent("the JVM has ended", _E, "The JVM has ended. The Spark driver ends and is restarted."),
    LogEvent(
        "the Spark application has ended",
        _E,
        "The Spark application has ended. The driver ends and is restarted.",
    ),
    LogEvent(
        "no executor has come back",
        _E,
        "No executor came back. The Spark driver ends and is restarted.",
    ),
    LogEvent("not warmed up", _W, "The first job that Spark SQL evaluates will take longer."),
)

GATEWAY_EVENTS = (
    LogEvent("gateway begins", _I, "The process of the gateway has started."),
    LogEvent("request failed", _W, "A call failed unexpectedly and was answered with 500."),
    LogEvent("scan failed", _W, "The rows of a scan could not all be sent."),
    LogEvent(
        "memory is short", _W, "A call needed more memory than is free and was answered with 503."
    ),
    LogEvent("background work failed", _W, "Work that no caller waits for failed."),
    LogEvent(
        "an answer is not taken", _W, "A caller did not read its answer. The connection was closed."
    ),
    LogEvent("message to operators", _I, "A notification is due; its targets are sent it."),
    LogEvent("message not sent", _E, "A target has refused a notification, or it is too old."),
    LogEvent("message is retried", _W, "A target of notifications did not answer."),
    LogEvent(
        "sent messages not kept",
        _W,
        "The notifications that were sent could not be kept. A restarted gateway may repeat them.",
    ),
    LogEvent(
        "sent messages are unknown",
        _W,
        "What was kept of notifications cannot be read. They may be repeated.",
    ),
    LogEvent("too many connections", _W, "Connections above the limit were refused."),
    LogEvent("tokens read", _I, "The file of named tokens has changed and was read again."),
    LogEvent(
        "tokens not read",
        _E,
        "The file of named tokens cannot be read; the last tokens stay valid.",
    ),
    LogEvent(
        "audit not written",
        _E,
        "The audit file or stream did not accept an entry. `place` names which.",
    ),
    LogEvent(
        "keys of the issuer not read",
        _W,
        "The keys of `access.oidc_issuer` could not be read. The last keys stay valid for an hour.",
    ),
    LogEvent("certificate read", _I, "The certificate of the gateway has changed and is in use."),
    LogEvent(
        "certificate not read", _E, "A new certificate cannot be used; the last one stays in use."
    ),
    LogEvent("gateway fails", _E, "The gateway failed. The process ends and is restarted."),
)

SHARED_EVENTS = (
    LogEvent("store does not answer", _W, "Redis cannot be reached. Work that needs it waits."),
    LogEvent("store answers again", _I, "Redis can be reached again."),
    LogEvent("reader died", _W, "A process that reads users' files ended. It is replaced."),
)

SUPERVISOR_EVENTS = (
    LogEvent("part is down", _W, "A part of a local stack has ended or does not respond."),
    LogEvent(
        "part does not start",
        _E,
        "A part could not be started. The supervisor retries.",
    ),
    LogEvent("part is up again", _I, "A part of a local stack was restarted."),
    LogEvent("step", _I, "A step of restarting a part."),
    LogEvent(
        "look at the stack failed",
        _E,
        "The supervisor could not check the stack, for example because its state file cannot be"
        " read. It checks again.",
    ),
    LogEvent("supervisor ends", _I, "The stack is down, so the supervisor ends."),
)

SERVE_EVENTS = (
    LogEvent("part is started", _I, "`neve serve` has started an actor that was missing."),
    LogEvent("part is replaced", _I, "An actor with other settings or release is replaced."),
    LogEvent("part is silent", _W, "An actor did not answer for a minute and is restarted."),
    LogEvent("compactors drained", _I, "The service shuts down; its compactors have ended."),
)

EVENTS_BY_PART = {
    "coordinator": COORDINATOR_EVENTS,
    "compactor": COMPACTOR_EVENTS,
    "gateway": GATEWAY_EVENTS,
    "coordinator and gateway": SHARED_EVENTS,
    "supervisor": SUPERVISOR_EVENTS,
    "serve": SERVE_EVENTS,
}
_LEVELS = {event.name: event.level for events in EVENTS_BY_PART.values() for event in events}


def level_of(event: str) -> LogLevel:
    """Return the level of an event; INFO for an event that is not in the table."""
    return _LEVELS.get(event, LogLevel.INFO)
