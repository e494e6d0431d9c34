"""Looks at every tablet of a request's range, page by page, before the request moves on.

A page is one transaction that writes nothing; the last one decides. What was seen on the
pages before still holds then, because it can only be undone after the request has moved on:

    r is done here          no split or merge begins over a done marker, and only an ended
                            request's is removed; so the tablets seen are the tablets
    nothing of r is here    mark and select want an active request, reserve wants its
                            selection; so what is not there does not come
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.metadata.commands import Command, get, members_after
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.request_parts import missing, own_request, request_seen
from common.metadata.mutation.transaction import Decision, Done, More, Needs, Seen, Transaction
from common.metadata.predicates import may_change
from common.model.outcome import Refusal
from common.model.request import Request
from common.model.tablet import PLUS_INFINITY, TabletId

TABLETS_PER_LOOK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Everywhere:
    """What must be so on every tablet of a request's range, and what follows."""

    table: TableKeys
    request: str
    may_begin: Callable[[Request], Decision | None]
    """Whether to look at all; None: go on."""
    reads: Callable[[TabletKeys], Mapping[str, Command]]
    """What to read of a tablet, in this order; `bounds` is read last."""
    refused: Callable[[TabletId, Seen], Refusal | None]
    """Why a tablet is not as it must be, asked with these reads alone."""
    tiles: bool
    """Whether the tablets must cover the range without a hole."""
    then: Callable[[Request, Seen], Decision]
    """What to do when every tablet is so."""


def everywhere(wanted: Everywhere, reached: bytes | None = None) -> Transaction:
    """Return the transaction of one page.

    Args:
        wanted: What is asked.
        reached: End of the last tablet that was seen; None: begin.
    """
    needs = need.whole_table(wanted.table) | own_request(wanted.table, wanted.request)

    def decide(seen: Seen) -> Decision:
        table = need.table_seen(wanted.table, seen)
        if refusal := may_change(wanted.table.id, table.state if table else None):
            return refusal
        request = request_seen(wanted.table, wanted.request, seen)
        if request is None:
            return missing(wanted.request)
        if (early := wanted.may_begin(request)) is not None:
            return early
        partitioned = table is not None and bool(table.partition_by)
        page = _Page(wanted, request, reached, partitioned)
        return More(Needs((), {"page": page.command}), page.look)

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True)
class _Page:
    """Some tablets in a row, from where the last page ended."""

    wanted: Everywhere
    request: Request
    reached: bytes | None
    partitioned: bool

    @property
    def command(self) -> Command:
        """Read the ends of the tablets that follow."""
        begins = self.reached is None
        first = self.request.range.start if begins else self.reached
        return members_after(self.wanted.table.index, first, TABLETS_PER_LOOK, inclusive=begins)

    def look(self, seen: Seen) -> Decision:
        """Read the tablets of the page."""
        ends, last = self._inside(seen["page"])
        tablets = [TabletId(self.wanted.table.id, end) for end in ends]
        reads: dict[str, Command] = {}
        for tablet in tablets:
            keys = TabletKeys.of(tablet)
            own = {**self.wanted.reads(keys), "bounds": get(keys.bounds)}
            reads |= {f"{tablet.text}/{name}": command for name, command in own.items()}
        return More(Needs((), reads), lambda more: self._decide(tablets, more, last=last))

    def _inside(self, ends: Sequence[bytes]) -> tuple[list[bytes], bool]:
        """Return the ends of the tablets of the range, and whether no more will follow."""
        if self.partitioned:
            until = self.request.range.until
            inside = [end for end in ends if until is None or end < until]
            return inside, len(inside) < TABLETS_PER_LOOK
        before = sum(not self._reaches(end) for end in ends)
        return [*ends[: before + 1]], before < len(ends) or len(ends) < TABLETS_PER_LOOK

    def _reaches(self, end: bytes | None) -> bool:
        """Return whether no tablet behind this end may hold keys of the range."""
        return end is not None and not (
            end < PLUS_INFINITY and self.request.range.meets(end, PLUS_INFINITY)
        )

    def _decide(self, tablets: Sequence[TabletId], seen: Seen, *, last: bool) -> Decision:
        reached = self.reached
        for number, tablet in enumerate(tablets):
            begins = not number and reached is None
            if refusal := self._refused(tablet, reached, seen, begins=begins):
                return refusal
            reached = tablet.end
        if not last:
            return Done(then=everywhere(self.wanted, reached))
        if self.wanted.tiles and not self.partitioned and not self._reaches(reached):
            return Refusal("bounds", f"request {self.request.id}: its tablets change, look again")
        return self.wanted.then(self.request, seen)

    def _refused(
        self, tablet: TabletId, reached: bytes | None, seen: Seen, *, begins: bool
    ) -> Refusal | None:
        """Return why a tablet is not as it must be, or does not follow the one before."""
        keys, prefix = TabletKeys.of(tablet), f"{tablet.text}/"
        own = {name: seen[prefix + name] for name in (*self.wanted.reads(keys), "bounds")}
        if refusal := self.wanted.refused(tablet, Seen(own, seen.now_s)):
            return refusal
        if not self.wanted.tiles or self.partitioned:
            return None
        bounds = need.bounds_seen(keys, own["bounds"])
        start = self.request.range.start
        if bounds is None:
            follows = False
        elif begins:
            follows = bounds.start is None or (start is not None and bounds.start < start)
        else:
            follows = bounds.start == reached
        return None if follows else Refusal("bounds", f"tablet {tablet} has changed, look again")
