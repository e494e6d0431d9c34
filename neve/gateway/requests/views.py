"""Wire models of requests, and the sums over their tablets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from common.model.fields import as_plain
from common.model.key_values import KeyType
from common.model.keys import format_key
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestProgressInTablet,
    RequestState,
    TabletProgress,
    TransformKind,
    TransformSpec,
)
from common.model.table import Table
from common.model.tablet import Tablet
from common.wire import AttemptProgress
from coordinator.core.triggers import WATERMARKS_PER_RETENTION
from neve import api
from neve.gateway.key_views import key_text, key_types, range_types

TABLETS_MAX = 10_000
DROPPING = frozenset({"expired", "deletes"})
"""Selectors that users choose in order to drop dead rows."""
_ENDED = frozenset({TabletProgress.DONE, TabletProgress.CANCELLED})


class ProgressTotals:
    """Sums up the progress of a request tablet by tablet; keeps a bounded number of tablets."""

    def __init__(
        self,
        table: Table,
        request: Request,
        attempts: Mapping[str, AttemptProgress],
        now_s: float,
    ) -> None:
        self._types = key_types(table)
        self._request = request
        self._attempts = attempts
        self._now_s = now_s
        self._states: Counter[TabletProgress] = Counter()
        self._open: list[api.RequestTablet] = []
        self._ended: list[api.RequestTablet] = []
        self._files_left = self._running = self._bytes_left = self._bytes_done = 0
        self._bytes_per_s = 0.0

    def add(self, tablet: Tablet, here: RequestProgressInTablet) -> None:
        """Count a tablet.

        Args:
            tablet: The tablet as it was read.
            here: Progress of the request in the tablet.
        """
        self._states[here.state] += 1
        self._running += len(here.running)
        self._files_left += here.files - here.results
        self._bytes_left += here.bytes_left
        made = (each for each in tablet.files.values() if each.request == self._request.id)
        self._bytes_done += sum(file.size_bytes for file in made)
        for told in filter(None, map(self._attempts.get, here.running)):
            read = min(told.bytes_done, here.bytes_left)
            self._bytes_left -= read
            self._bytes_done += read
            self._bytes_per_s += told.bytes_done / max(self._now_s - told.since_s, 1.0)
        listed = self._ended if here.state in _ENDED else self._open
        if len(listed) < TABLETS_MAX:
            listed.append(self._view(tablet, here))

    def tablets(self, count: int) -> tuple[api.RequestTablet, ...]:
        """Return at most `count` tablets; those in which the request has not ended come first."""
        return tuple([*self._open, *self._ended][:count])

    @property
    def progress(self) -> api.Progress:
        """The sums over all tablets."""
        whole = self._bytes_done + self._bytes_left
        tablets = self._states.total()
        ended = sum(self._states[state] for state in _ENDED)
        by_tablet = ended / tablets if tablets else 0.0
        return api.Progress(
            tablets=tablets,
            **{state.value: self._states[state] for state in TabletProgress},
            files_left=self._files_left,
            running=self._running,
            bytes_done=self._bytes_done,
            bytes_left=max(self._bytes_left, 0),
            fraction=self._bytes_done / whole if whole and self._bytes_left > 0 else by_tablet,
            eta_s=self._eta_s(),
        )

    def _eta_s(self) -> float | None:
        """Return the estimated seconds left, from the rate of running attempts or the average."""
        if self._bytes_per_s:
            return max(self._bytes_left, 0) / self._bytes_per_s
        elapsed_s = self._now_s - self._request.submitted_at_s
        if self._bytes_done and elapsed_s > 0:
            return max(self._bytes_left, 0) * elapsed_s / self._bytes_done
        return None

    def _view(self, tablet: Tablet, here: RequestProgressInTablet) -> api.RequestTablet:
        bounds = tablet.bounds
        return api.RequestTablet(
            tablet=tablet.id.text,
            state=here.state.value,
            reason=here.reason,
            end=None if bounds.partition else key_text(bounds.end, self._types),
            partition=bounds.partition,
            files_left=here.files - here.results,
            bytes_left=here.bytes_left,
            running=len(here.running),
        )


def request_view(
    table: Table,
    request: Request,
    progress: api.Progress | None = None,
    tablets: tuple[api.RequestTablet, ...] = (),
) -> api.Request:
    """Return the wire model of a request.

    Args:
        table: Table of the request.
        request: The request, as stored.
        progress: Progress to include, if any.
        tablets: Tablets to include.
    """
    types = range_types(table)
    selector = request.selector
    return api.Request(
        id=request.id,
        table=table.name,
        state=request.state.value,
        submitted_at_s=request.submitted_at_s,
        cause=request.cause,
        keys=keys_view(request.range, types),
        selector=api.Plugin(name=selector.name, options=dict(selector.options)),
        transform=transform_text(request.transform),
        output=None if request.output == OutputSpec() else api.Output(**as_plain(request.output)),
        hints=dict(request.hints),
        boost=request.boost,
        deadline_at_s=request.deadline_s,
        automatic=request.automatic,
        ended_at_s=request.ended_at_s,
        cancelled=tuple(
            keys_view(cancelled_range, types) or api.Keys()
            for cancelled_range in request.cancelled_ranges
        ),
        progress=progress or _progress_of_ended(request),
        tablets=tablets,
        notes=retention_notes(table, request, request.ended_at_s or request.submitted_at_s),
    )


def retention_notes(table: Table, request: Request, now_s: float) -> tuple[str, ...]:
    """Return notes on dead rows that the table's tombstone retention keeps after a request.

    Args:
        table: The table, as it is now.
        request: A request of the table.
        now_s: End of the request, or the current time.
    """
    settings, retention_s = table.settings, table.settings.tombstone_retention_s
    deletes = request.transform.kind is TransformKind.DELETE_WHERE
    drops = deletes or request.selector.name in DROPPING or settings.ttl_s is not None
    if not table.key or not drops or not retention_s:
        return ()
    until = datetime.fromtimestamp(now_s + retention_s * (1 + 1 / WATERMARKS_PER_RETENTION), UTC)
    return (
        f"deleted and expired rows stay in the files, hidden from readers, while the table has "
        f"known their version for less than tombstone_retention_s = {retention_s:g} s; of rows "
        f"written by now the last can be dropped by a compaction after {until:%Y-%m-%d %H:%M} UTC",
    )


def transform_text(transform: TransformSpec) -> str:
    """Return a transform in user notation."""
    match transform.kind:
        case TransformKind.NONE:
            return ""
        case TransformKind.DELETE_WHERE:
            return f"delete where {transform.text}"
        case TransformKind.SET:
            return f"set {transform.text}"
        case TransformKind.PLUGIN:
            options = ", ".join(f"{name}={value}" for name, value in transform.options.items())
            return transform.name + (f" ({options})" if options else "")


def keys_view(keys: KeyRange, types: Sequence[KeyType]) -> api.Keys | None:
    """Return a range as texts; None: all keys.

    The bytes of a bound may be a key (or prefix) followed by one more byte: `00` stands for "just
    after this key", `ff` for "after all keys that begin with it".
    """
    if keys == KeyRange():
        return None
    start, behind_start = _bound(keys.start, types)
    end, behind_end = _bound(keys.until, types)
    return api.Keys(
        start=start,
        end=end,
        start_included=not behind_start,
        end_included=end is None or behind_end,
    )


def _bound(key: bytes | None, types: Sequence[KeyType]) -> tuple[str | None, bool]:
    """Return the text of a bound, and whether the bound lies after the key of the text."""
    if key is None:
        return None, False
    try:
        return format_key(key, types), False
    except ValueError:
        return key_text(key[:-1], types), True


def _progress_of_ended(request: Request) -> api.Progress | None:
    if request.state not in (RequestState.DONE, RequestState.DONE_IN_PART):
        return None
    return api.Progress(fraction=1.0)
