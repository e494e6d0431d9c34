"""Names of metrics, and the event log. Both are part of the interface.

The metric table is the only list of names. `GET /metrics` of the gateway exports all of them. The
reference page prints the table, and a test keeps both equal. Logs are events with fields, one JSON
line each; only shells write them.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_type_hints

from common.errors import redacted_tree
from common.log_events import LogLevel, level_of
from common.runtime import not_installed
from neve.api.compactors import Group
from neve.api.messages import Measured
from neve.api.service import Status

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger

Log = Callable[..., None]
"""`log("job assigned", job=…, compactor=…)`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()
    of: type | None = None
    """The operator's word whose `field` has the value; None: the value is counted elsewhere."""
    field: str = ""


_OF_COMPACTOR = ("group", "compactor")


def _of_compactor(name: str, kind: str, meaning: str, *labels: str) -> Metric:
    """Return a metric of one compactor, which its heartbeats have."""
    return Metric(f"neve_compactor_{name}", kind, meaning, (*_OF_COMPACTOR, *labels))


def _measured(kind: type, *labels: str) -> Iterator[Metric]:
    """Yield the metrics that the fields of an operator's word declare."""
    for field, hint in get_type_hints(kind, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Measured):
                yield Metric(mark.metric, mark.kind, mark.help, labels, of=kind, field=field)


METRICS: tuple[Metric, ...] = (
    Metric(
        "neve_http_requests_total",
        "counter",
        "HTTP requests answered.",
        ("route", "method", "code"),
    ),
    Metric(
        "neve_http_request_seconds",
        "histogram",
        "Time to answer an HTTP request.",
        ("route", "method"),
    ),
    Metric("neve_scans", "gauge", "Scans in progress."),
    Metric(
        "neve_scan_held_bytes", "gauge", "Bytes of scanned rows that callers have not received."
    ),
    Metric(
        "neve_audit_failures_total",
        "counter",
        "Audit entries that the file or the stream did not accept.",
    ),
    Metric(
        "neve_buffer_delay_seconds_total",
        "counter",
        "Time that calls which buffer rows were delayed, because buffers or compactions lag.",
    ),
    Metric(
        "neve_buffer_refusals_total",
        "counter",
        "Calls that were refused because buffers were full, or the store was short of memory.",
    ),
    Metric("neve_coordinator_up", "gauge", "1 while the coordinator answers, otherwise 0."),
    *_measured(Group, "group"),
    *_measured(Status),
    Metric(
        "neve_backlog_bytes",
        "gauge",
        "Bytes still to be rewritten, for the 99 tables with the largest backlog.",
        ("table",),
    ),
    Metric(
        "neve_backlog_group_bytes",
        "gauge",
        "Bytes still to be rewritten by the compactors of a group.",
        ("group",),
    ),
    Metric(
        "neve_backlog_untracked_tables",
        "gauge",
        "Tables whose backlog is estimated from planned jobs, because the planner has no tracker "
        "(`none`) or the tracker failed at the last plan of a tablet (`failed`).",
        ("cause",),
    ),
    Metric("neve_control_shares", "gauge", "Shares of a class of work.", ("class",)),
    Metric(
        "neve_control_granted_ratio",
        "gauge",
        "Fraction of all shares of a class, and of bytes while every class has jobs.",
        ("class",),
    ),
    Metric(
        "neve_control_used_ratio",
        "gauge",
        "Fraction of the bytes handed out in the last minute, by class.",
        ("class",),
    ),
    Metric(
        "neve_control_bytes_total",
        "counter",
        "Bytes of the handed-out jobs of a class.",
        ("class",),
    ),
    Metric(
        "neve_control_bytes_per_second",
        "gauge",
        "Bytes per second that the controller allows for all rewrites; absent: no limit.",
    ),
    Metric(
        "neve_control_slots",
        "gauge",
        "Slots that the controller allows for system jobs; absent: all slots.",
    ),
    Metric(
        "neve_control_arrival_bytes_per_second",
        "gauge",
        "Bytes of rewriting that arrive per second.",
    ),
    Metric(
        "neve_control_rewrite_bytes_per_second",
        "gauge",
        "Input bytes that are rewritten per second.",
    ),
    Metric(
        "neve_control_reader_wait_seconds",
        "gauge",
        "Average wait of the readers of the slowest table; absent: readers report nothing.",
    ),
    Metric(
        "neve_control_failures_total",
        "counter",
        "Answers of the controller that were not used.",
    ),
    Metric(
        "neve_compactors_desired",
        "gauge",
        "Target number of compactors of the group.",
        ("group",),
    ),
    Metric(
        "neve_compactors_starting",
        "gauge",
        "Compactors that were started and do not take jobs yet.",
        ("group",),
    ),
    Metric(
        "neve_compactors_draining",
        "gauge",
        "Compactors that finish their jobs and then end.",
        ("group",),
    ),
    Metric(
        "neve_compactor_starts_failed_total",
        "counter",
        "Compactors that failed to start.",
        ("group",),
    ),
    Metric(
        "neve_compactors_blocked",
        "gauge",
        "1 while the group cannot get the compactors that it needs, otherwise 0.",
        ("group",),
    ),
    Metric(
        "neve_table_faults_total",
        "counter",
        "Unexpected failures of work on one table or tablet.",
        ("part",),
    ),
    Metric(
        "neve_tables_left_alone",
        "gauge",
        "Tables and tablets that some work skips for a while after an unexpected failure.",
    ),
    Metric("neve_store_memory_bytes", "gauge", "Memory that the store (Redis) uses."),
    Metric(
        "neve_store_memory_max_bytes", "gauge", "The store's `maxmemory`; 0 if there is no limit."
    ),
    Metric(
        "neve_store_full", "gauge", "1 while adds wait because the store was full, otherwise 0."
    ),
    Metric(
        "neve_table_files",
        "gauge",
        "Files of the tablets planned since the coordinator started, for the 99 tables with the"
        " most small files.",
        ("table",),
    ),
    Metric(
        "neve_table_small_files",
        "gauge",
        "Those of them that are smaller than half of the table's target size and share their"
        " tablet with another such file.",
        ("table",),
    ),
    Metric(
        "neve_table_queue_oldest_seconds",
        "gauge",
        "Age of the oldest queued job, for the 99 tables with the oldest ones.",
        ("table",),
    ),
    Metric(
        "neve_table_quarantined_tablets",
        "gauge",
        "Tablets in quarantine, for the 99 tables with the most.",
        ("table",),
    ),
    Metric("neve_series_bytes", "gauge", "Memory of the recorded values of the last day."),
    Metric("neve_series_stored_bytes", "gauge", "Size of their snapshot in the store, compressed."),
    Metric("neve_series_tables", "gauge", "Tables with recorded values of their own, up to 447."),
    Metric("neve_buffered_bytes", "gauge", "Decoded size of rows that are not in files so far."),
    Metric("neve_buffered_bytes_max", "gauge", "Bound of these bytes, `ingest.bytes_max`."),
    Metric("neve_buffered_rows", "gauge", "Acknowledged rows that are not in files so far."),
    Metric("neve_buffered_oldest_seconds", "gauge", "Age of the oldest of these rows."),
    Metric("neve_flushed_rows_total", "counter", "Buffered rows that were written to files."),
    Metric("neve_flushed_files_total", "counter", "Files that flushes have written."),
    Metric("neve_flush_failures_total", "counter", "Flushes that failed; they are tried again."),
    Metric("neve_lake_tables", "gauge", "Attached lake tables."),
    Metric(
        "neve_lake_tables_not_followed",
        "gauge",
        "Lake tables whose log does not answer or is refused, so that no job starts.",
    ),
    Metric("neve_lake_polls_total", "counter", "Looks for new versions of lake tables."),
    Metric(
        "neve_lake_mirror_changes_total", "counter", "Versions of lake tables that were mirrored."
    ),
    Metric(
        "neve_lake_outputs_deleted_total",
        "counter",
        "Outputs of lake tables that no version has, and that were deleted.",
    ),
    Metric("neve_published_logs", "gauge", "Tables that publish a log for other engines."),
    Metric(
        "neve_published_logs_failing",
        "gauge",
        "Tables whose log cannot be published or removed. Their replaced files stay.",
    ),
    Metric("neve_published_versions_total", "counter", "Versions of published logs."),
    Metric(
        "neve_published_failures_total",
        "counter",
        "Publications and removals of logs that failed; they are tried again.",
    ),
    Metric(
        "neve_lake_maintenance_runs_total",
        "counter",
        "Runs of maintenance operations of lake tables that did something, or failed.",
        ("operation", "outcome"),
    ),
    Metric(
        "neve_lake_maintenance_files_total", "counter", "Files that these deleted.", ("operation",)
    ),
    Metric(
        "neve_lake_maintenance_bytes_total", "counter", "Bytes that these freed.", ("operation",)
    ),
    Metric("neve_requests", "gauge", "Requests that have not ended.", ("state",)),
    Metric(
        "neve_requests_ended_total",
        "counter",
        "Requests that have ended since the coordinator started.",
        ("state",),
    ),
    Metric(
        "neve_requests_oldest_seconds", "gauge", "Age of the oldest request that has not ended."
    ),
    Metric(
        "neve_requests_waiting_tablets",
        "gauge",
        "Tablets in which a request waits for running jobs, as last read.",
    ),
    Metric(
        "neve_requests_rows_transformed_total",
        "counter",
        "Rows read by jobs with a transform, as reported by compactors.",
    ),
    Metric("neve_selector_calls_total", "counter", "Calls of selectors."),
    Metric(
        "neve_selector_failures_total",
        "counter",
        "Calls of selectors that failed or took too long.",
    ),
    Metric(
        "neve_feed_resets_total",
        "counter",
        "Times that a change feed was trimmed before it was read, so changes were missed.",
    ),
    Metric(
        "neve_trigger_decisions_total",
        "counter",
        "Tablets that a trigger planned, by outcome: `accepted`, `held`, "
        "`refused`, `failed`. A trigger that was refused before planning counts once.",
        ("trigger", "verdict"),
    ),
    Metric("neve_tablets_planned_total", "counter", "Plans made by the coordinator."),
    Metric("neve_tablets_waiting", "gauge", "Tablets that wait to be planned."),
    Metric("neve_full_scan_seconds", "gauge", "Duration of the last full scan of a table."),
    Metric("neve_full_scan_tablets_total", "counter", "Tablets that full scans have checked."),
    Metric(
        "neve_full_scan_planned_total", "counter", "Tablets that full scans have read and planned."
    ),
    Metric("neve_full_scan_found_total", "counter", "Tablets in which full scans have found work."),
    Metric("neve_full_scan_pieces_total", "counter", "Tries of parts of full scans."),
    Metric(
        "neve_full_scan_pieces_failed_total", "counter", "Tries of parts of full scans that failed."
    ),
    Metric(
        "neve_throttle_limit_bytes_per_second",
        "gauge",
        "Limit on the bytes per second that rewrites of a group or volume read and write.",
        ("kind", "name"),
    ),
    Metric(
        "neve_throttle_granted_bytes_per_second",
        "gauge",
        "Part of the limit that is granted to attempts.",
        ("kind", "name"),
    ),
    Metric(
        "neve_throttle_jobs",
        "gauge",
        "Jobs that recently had to wait for their grant.",
        ("kind", "name"),
    ),
    Metric(
        "neve_throttle_moved_bytes_total",
        "counter",
        "Bytes that rewrites have read and written.",
        ("kind", "name"),
    ),
    Metric(
        "neve_throttle_waited_seconds_total",
        "counter",
        "Time that tasks of rewrites have waited for their grants.",
        ("kind", "name"),
    ),
    _of_compactor("attempts_total", "counter", "Attempts that ended, by outcome.", "end"),
    _of_compactor("read_bytes_total", "counter", "Bytes of the inputs of committed attempts."),
    _of_compactor("written_bytes_total", "counter", "Bytes of the outputs of committed attempts."),
    _of_compactor(
        "rows_dropped_total",
        "counter",
        "Input rows of committed attempts that are not in the outputs: `superseded`,"
        " `tombstone`, `expired` or `transform`.",
        "reason",
    ),
    _of_compactor("rewrite_seconds", "histogram", "Time to rewrite and verify, for every outcome."),
    _of_compactor(
        "throttled_seconds_total", "counter", "Time that tasks of ended attempts have waited."
    ),
    _of_compactor("slots", "gauge", "Largest number of concurrent attempts of the compactor."),
    _of_compactor("slots_busy", "gauge", "Attempts that the compactor holds."),
    _of_compactor("spark_restarts_total", "counter", "Restarts of the Spark driver."),
    _of_compactor(
        "memory_bytes",
        "gauge",
        "Resident memory of the Spark driver and its child processes, without executors.",
    ),
)


def event_log(part: str, least: str = LogLevel.INFO) -> Log:
    """Return the log of a part: each call writes one JSON line to standard error.

    Args:
        part: `coordinator`, `compactor`, `gateway`, …
        least: Events below this level are left out.
    """
    with not_installed("rich"):  # It draws on terminals.
        import structlog

    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(least),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            _redact,
            _put_heads_first,
            structlog.processors.JSONRenderer(default=str),
        ],
        cache_logger_on_first_use=True,
        part=part,
    )

    def log(event: str, **fields: object) -> None:
        # A full disk or a closed pipe must not end the service.
        with suppress(OSError):
            logger.log(_NUMBERS[level_of(event)], event, **fields)

    return log


_NUMBERS = {level: logging.getLevelNamesMapping()[level.upper()] for level in LogLevel}
LINE_FIELDS = ("at", "level", "part", "event")
"""Fields at the start of every line; events have no fields of these names."""


def _redact(_logger: object, _method: str, line: "EventDict") -> "EventDict":
    redacted: EventDict = redacted_tree(line)
    return redacted


def _put_heads_first(_logger: object, _method: str, line: "EventDict") -> "EventDict":
    """Put the common fields first, so that a log file is easy to read."""
    return {head: line[head] for head in LINE_FIELDS} | dict(line)
