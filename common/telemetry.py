"""Names of metrics, and the event log. Both are part of the interface.

The metric table is the only list of names: the gateway renders it, the reference
page prints it, a test keeps them alike. Logs are events with fields, one JSON line
each, written by shells only.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass

Log = Callable[..., None]
"""`log("job assigned", job=…, compactor=…)`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family as Prometheus sees it."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric(
        "neve_http_requests_total", "counter", "Requests answered.", ("route", "method", "code")
    ),
    Metric("neve_http_request_seconds", "histogram", "Time to answer.", ("route", "method")),
    Metric("neve_coordinator_up", "gauge", "1 while the coordinator answers."),
    Metric("neve_queue_jobs", "gauge", "Jobs queued.", ("group",)),
    Metric("neve_queue_bytes", "gauge", "Memory of the queue.", ("group",)),
    Metric("neve_queue_cost_bytes", "gauge", "Bytes in and out of the queued jobs.", ("group",)),
    Metric("neve_queue_oldest_seconds", "gauge", "Age of the oldest queued job.", ("group",)),
    Metric("neve_queue_accepted_total", "counter", "Jobs accepted into the queue.", ("group",)),
    Metric("neve_queue_rejected_total", "counter", "Jobs refused by a full queue.", ("group",)),
    Metric("neve_queue_evicted_total", "counter", "Jobs shed from a full queue.", ("group",)),
    Metric("neve_jobs_running", "gauge", "Attempts under way.", ("group",)),
    Metric("neve_compactors", "gauge", "Compactors alive.", ("group",)),
    Metric("neve_jobs_committed_total", "counter", "Attempts that committed."),
    Metric("neve_jobs_failed_total", "counter", "Attempts that failed."),
    Metric("neve_jobs_released_total", "counter", "Reservations given up."),
    Metric("neve_store_conflicts_total", "counter", "Changes tried again after a lost race."),
    Metric("neve_tablets_quarantined", "gauge", "Tablets that are left alone after failures."),
    Metric("neve_tables", "gauge", "Live and paused tables."),
)


def event_log(part: str) -> Log:
    """Return the log of a part: each call writes one JSON line to standard error.

    Args:
        part: `coordinator`, `compactor`, `gateway`, …
    """
    logger = logging.getLogger(f"neve.{part}")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter('{"at":"%(asctime)s",%(message)s}'))
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(logging.INFO)

    def log(event: str, **fields: object) -> None:
        line = json.dumps({"part": part, "event": event, **fields}, default=str)
        logger.info("%s", line[1:-1])

    return log
