"""Which messages are due: one when a condition begins, one when it has ended. Pure.

A condition is a state of a table, a group or the service, such as quarantined tablets. It begins
when it has been there for a time, so that its message has the count of all that happened together.
It ends when it has been gone for a time, so that a state that comes and goes is one condition.
What cannot be seen, because the coordinator is silent, neither begins nor ends.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from common.control_settings import NotifySettings
from common.units import format_bytes, format_count, format_duration, utc_text
from common.wire import OTHERS, Condition, RequestEnds

STANDING_MAX = 1000
"""Conditions that are remembered; further ones are not notified."""
TEXT_CHARS_MAX = 500
ENDS_MAX = 1000
SILENT = ("store-silent", "coordinator-silent")
"""Conditions that the gateway sees itself."""
BEGUN, ENDED, EVENT, TEST = "begun", "ended", "event", "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to operators, the body of a webhook's call."""

    id: str = ""
    """Random; a repeated delivery has the same. Empty: the message is not addressed so far."""
    service: str = ""
    kind: str
    """The condition, one of `notify.conditions`, or `test`."""
    state: str
    """`begun` or `ended` of a condition; `event` of requests; `test`."""
    subject: str
    """Table or group; empty: the service."""
    count: int
    """Largest number of tablets, requests or bytes."""
    title: str
    text: str
    at_s: float = 0.0
    """Time of the message."""
    since_s: float
    """When the condition began."""

    def addressed(self, message_id: str, service: str, now_s: float) -> "Message":
        """Return the message with its id, the name of its service and its time."""
        title = f"[{service}] {self.title}"
        return replace(self, id=message_id, service=service, title=title, at_s=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A condition that is there, or was until recently."""

    kind: str
    subject: str
    since_s: float
    seen_s: float
    count: int
    text: str
    is_sent: bool = False
    """Whether its begin was sent."""


class Conditions:
    """The conditions of a service, and the requests that were notified."""

    def __init__(self, rules: NotifySettings) -> None:
        """Create an instance that has seen nothing."""
        self._rules = rules
        self.standing: dict[tuple[str, str], Standing] = {}
        self._coordinator = ""
        """Coordinator whose ended requests are counted."""
        self._ends: dict[tuple[str, str], int] = {}

    # ---------------------------------------------------------------------------------- Conditions

    def look(
        self, found: Iterable[Condition], unseen: Collection[str], now_s: float
    ) -> list[Message]:
        """Return the messages that are due.

        Args:
            found: The conditions that are there.
            unseen: Kinds of conditions that cannot be seen now.
            now_s: The current time.
        """
        for condition in found:
            if condition.kind in self._rules.conditions:
                self._note(condition, now_s)
        due: list[Message] = []
        for key, before in list(self.standing.items()):
            standing = replace(before, seen_s=now_s) if before.kind in unseen else before
            self.standing[key] = standing
            if standing.seen_s == now_s:
                if not standing.is_sent and now_s - standing.since_s >= self._after_s(standing):
                    self.standing[key] = replace(standing, is_sent=True)
                    due.append(_begun(standing))
            elif not standing.is_sent:
                del self.standing[key]
            elif now_s - standing.seen_s >= self._rules.calm_s:
                del self.standing[key]
                due.append(_ended(standing, now_s))
        return due

    def _note(self, condition: Condition, now_s: float) -> None:
        key = condition.kind, condition.subject
        before = self.standing.get(key)
        if before is None and len(self.standing) >= STANDING_MAX:
            return
        text = condition.text[:TEXT_CHARS_MAX]
        if before is None:
            self.standing[key] = Standing(
                kind=condition.kind,
                subject=condition.subject,
                since_s=now_s,
                seen_s=now_s,
                count=condition.count,
                text=text,
            )
        else:
            count = max(before.count, condition.count)
            self.standing[key] = replace(before, seen_s=now_s, count=count, text=text)

    def _after_s(self, standing: Standing) -> float:
        if standing.kind in SILENT:
            return self._rules.silent_after_s
        if standing.kind == "catalog-silent":
            return self._rules.catalog_silent_after_s
        return self._rules.backlog_after_s if standing.kind == "backlog" else self._rules.gather_s

    # ------------------------------------------------------------------------------------ Requests

    def requests_ended(
        self, coordinator: str, ends: Iterable[RequestEnds], now_s: float
    ) -> list[Message]:
        """Return one message per table and outcome for the requests that have ended since.

        Args:
            coordinator: Id of the coordinator, whose counts begin at 0.
            ends: Its counts.
            now_s: The current time.
        """
        # Requests that ended before this service looked for the first time are not reported.
        is_first = not self._coordinator
        if coordinator != self._coordinator:
            self._coordinator, self._ends = coordinator, {}
        before, self._ends = self._ends, {}
        due: list[Message] = []
        for line in list(ends)[:ENDS_MAX]:
            more = line.count - before.get((line.table, line.state), 0)
            self._ends[line.table, line.state] = line.count
            kind = _KINDS_OF_STATES.get(line.state, "")
            if more > 0 and kind in self._rules.conditions and not is_first:
                due.append(_requests(kind, line, more, now_s))
        return due

    # ---------------------------------------------------------------------------------- Remembered

    def document(self) -> dict[str, Any]:
        """Return what a restarted gateway must know, in a form for JSON."""
        return {
            "standing": [asdict(one) for one in self.standing.values() if one.is_sent],
            "coordinator": self._coordinator,
            "ends": [[table, state, count] for (table, state), count in self._ends.items()],
        }

    def restore(self, document: Mapping[str, Any], now_s: float) -> None:
        """Take over what an earlier gateway has sent.

        Conditions count as seen now, since what they are about may need a moment to be seen again.

        Raises:
            KeyError, TypeError, ValueError: It is no such document.
        """
        standing = [Standing(**fields) for fields in document["standing"][:STANDING_MAX]]
        ends = {(str(table), str(state)): int(count) for table, state, count in document["ends"]}
        self.standing = {(one.kind, one.subject): replace(one, seen_s=now_s) for one in standing}
        self._coordinator, self._ends = str(document["coordinator"]), ends


_KINDS_OF_STATES = {
    "done": "request-done",
    "done_in_part": "request-done",
    "failed": "request-failed",
}


def _of_subject(standing: Standing, what: str) -> str:
    if standing.subject == OTHERS:
        return f"further {what}s"
    return f"{what} {standing.subject}"


def _what(standing: Standing) -> str:
    """Return a condition in words, for a title."""
    match standing.kind:
        case "quarantined":
            count = format_count(standing.count, "tablet")
            return f"{count} of {_of_subject(standing, 'table')} in quarantine"
        case "shed":
            count = format_count(standing.count, "tablet")
            return f"queue of {_of_subject(standing, 'group')} is full, {count} deferred"
        case "backlog":
            size = format_bytes(standing.count)
            return f"backlog of {_of_subject(standing, 'table')} is {size}"
        case "read-only":
            return f"{_of_subject(standing, 'table')} is read-only"
        case "unpublished" | "catalog-silent":
            fault = "is not published" if standing.kind == "unpublished" else "does not answer"
            return f"the log of {_of_subject(standing, 'table')} {fault}"
        case "store-silent" | "coordinator-silent":
            part = "metadata store" if standing.kind == "store-silent" else "coordinator"
            return f"the {part} does not answer"
        case _:
            return standing.kind


def _begun(standing: Standing) -> Message:
    since = f"since {utc_text(round(standing.since_s))} UTC"
    return Message(
        kind=standing.kind,
        state=BEGUN,
        subject=standing.subject,
        count=standing.count,
        title=_what(standing),
        text="; ".join(filter(None, (f"{_what(standing)} {since}", standing.text))),
        since_s=standing.since_s,
    )


def _ended(standing: Standing, now_s: float) -> Message:
    lasted = format_duration(round(max(0.0, standing.seen_s - standing.since_s)))
    return Message(
        kind=standing.kind,
        state=ENDED,
        subject=standing.subject,
        count=standing.count,
        title=f"back to normal: {_what(standing)}",
        text=f"over after {lasted}, at most: {_what(standing)}",
        since_s=standing.since_s,
    )


def _requests(kind: str, line: RequestEnds, count: int, now_s: float) -> Message:
    how = "failed" if kind == "request-failed" else "done"
    requests = format_count(count, "request")
    cause = f": {line.cause}" if line.cause else ""
    last = f"request {line.request}" if count == 1 else f"the last one is {line.request}"
    return Message(
        kind=kind,
        state=EVENT,
        subject=line.table,
        count=count,
        title=f"{requests} of table {line.table} {how}",
        text=f"{last}{cause}",
        since_s=now_s,
    )


def message_of_test(now_s: float) -> Message:
    """Return the message of `neve notify --test`."""
    return Message(
        kind=TEST,
        state=TEST,
        subject="",
        count=1,
        title="test message",
        text="notifications of this service arrive here",
        since_s=now_s,
    )
