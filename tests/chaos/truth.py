"""What readers must see, worked out from the journal alone.

A row is certain once it was acknowledged; of what is under way, both is right. Moments
come from one counter: what has a lower one happened before. Rows of a bag are keys
that are given once.

Shares no code with the service. The rules: per key the newest row counts, unless it is
a tombstone, has expired or was deleted by a request; a request that is done has changed
every row of its range that was acknowledged before it was asked for, once; nothing that
a reader has seen, or seen to be gone, is ever taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from tests.chaos.batches import Batch, Kind, mod_of
from tests.support.ledger import texts

PROBLEMS_MAX = 8
SEPARATOR = "|"


@dataclass(slots=True)
class Given:
    """A batch that a writer gave, or gives."""

    batch: Batch
    intended: int
    acknowledged: int | None = None
    texts: list[str] = field(default_factory=list)

    def text(self, key: int) -> str:
        """Return the text of its row of a key."""
        if not self.texts:
            self.texts = texts(self.batch.count, self.batch.number)
        return self.texts[(key - self.batch.first) // self.batch.step]


@dataclass(slots=True)
class Wish:
    """A request that deletes rows of one `mod`, or writes its number into the tags of all."""

    number: int
    low: int
    high: int
    delete: int | None
    asked: int
    ended: int | None = None
    state: str = ""
    """`done` only if no part of it was cancelled: then every row was changed."""

    def touches(self, key: int, given: Given) -> bool:
        """Return whether it would change this row, were it there."""
        wanted = self.delete is None or self.delete == mod_of(key, given.batch.number)
        return wanted and self.low <= key <= self.high

    def may(self, given: Given, seen: int) -> bool:
        """Return whether it can have changed a row by a moment."""
        late = self.ended is not None and given.intended > self.ended
        return self.asked < seen and not late

    def must(self, given: Given, began: int) -> bool:
        """Return whether it has certainly changed a row before a moment."""
        done = self.state == "done" and self.ended is not None and self.ended < began
        return done and given.acknowledged is not None and given.acknowledged < self.asked


@dataclass(frozen=True, slots=True)
class Floor:
    """What a scan has shown of a key: nothing older may be seen any more."""

    number: int
    removed: bool
    """The row of this number is not to be seen either."""
    tags: frozenset[int] = frozenset()
    began: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """A row as a reader sees it."""

    number: int
    mod: int
    tags: str
    text: str


class Truth:
    """One table's; not to be used by two threads at once."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._given: dict[int, Given] = {}
        self._keys: dict[int, list[Given]] = {}
        self._wishes: dict[int, Wish] = {}
        self._floors: dict[int, Floor] = {}

    def intend(self, batch: Batch, moment: int) -> None:
        """Note a batch that is about to be given; its number is the highest so far."""
        given = Given(batch, moment)
        self._given[batch.number] = given
        for key in batch.keys:
            self._keys.setdefault(key, []).append(given)

    def acknowledge(self, number: int, moment: int) -> None:
        """Note that the service has taken a batch."""
        self._given[number].acknowledged = moment

    def ask(self, wish: Wish) -> None:
        """Note a request that is about to be made."""
        self._wishes[wish.number] = wish

    def end(self, number: int, state: str, moment: int) -> None:
        """Note that a request has been seen to be over."""
        self._wishes[number].state = state
        self._wishes[number].ended = moment

    def unanswered(self) -> list[int]:
        """Return the batches that nobody has acknowledged."""
        return [n for n, given in self._given.items() if given.acknowledged is None]

    def check(self, found: pa.Table, began: int, ended: int) -> list[str]:
        """Return what is wrong with a scan, at most some sentences.

        Args:
            found: All of its rows.
            began: Moment before it.
            ended: Moment after it.
        """
        problems: list[str] = []
        for problem in self._problems(found, began, ended):
            problems.append(f"{self.kind.name}: {problem}")
            if len(problems) == PROBLEMS_MAX:
                break
        return problems

    def _problems(self, found: pa.Table, began: int, ended: int) -> Iterator[str]:
        seen: dict[int, Shown] = {}
        for key, row in self._rows(found):
            if key in seen:
                yield f"key {key} is doubled: {seen[key]} and {row}"
            seen[key] = row
        for key, givens in self._keys.items():
            known = [given for given in givens if given.intended < ended]
            row = seen.pop(key, None)
            base = self._base(key, known, began)
            if row is not None:
                yield from self._shown(key, known, row, base, (began, ended))
            elif base is not None:
                yield from self._absent(key, known, base, (began, ended))
        for key, row in seen.items():
            yield f"key {key} comes from nowhere: {row}"

    def _rows(self, found: pa.Table) -> Iterator[tuple[int, Shown]]:
        names = (
            ("k", "v", "mod", "tags", "text") if self.kind.keyed else ("n", "mod", "tags", "text")
        )
        for key, *rest in zip(*(found[name].to_pylist() for name in names), strict=True):
            number = rest.pop(0) if self.kind.keyed else key // self.kind.rows_max
            yield key, Shown(number, *rest)

    def _base(self, key: int, known: list[Given], began: int) -> int | None:
        """Return the lowest number that may count for a key, and forget what is older."""
        base = None
        for given in reversed(known):
            if given.acknowledged is not None and given.acknowledged < began:
                base = given.batch.number
                break
        floor = self._floors.get(key)
        if floor is not None:
            base = floor.number if base is None else max(base, floor.number)
        if base is not None:
            kept = self._keys[key]
            kept[:] = [given for given in kept if given.batch.number >= base]
        return base

    def _absent(
        self, key: int, known: list[Given], base: int, span: tuple[int, int]
    ) -> Iterator[str]:
        floor = self._floors.get(key)
        if floor is not None and floor.removed and floor.number == base:
            return
        counts = [given for given in known if given.batch.number >= base]
        if any(self._may_be_gone(key, given, span[1]) for given in counts):
            self._floors[key] = Floor(base, removed=True)
        else:
            yield f"key {key} is lost: {[given.batch for given in counts]} should be seen"

    def _may_be_gone(self, key: int, given: Given, ended: int) -> bool:
        return given.batch.ended(key) or any(
            wish.delete is not None and wish.touches(key, given) and wish.may(given, ended)
            for wish in self._wishes.values()
        )

    def _shown(
        self,
        key: int,
        known: list[Given],
        row: Shown,
        base: int | None,
        span: tuple[int, int],
    ) -> Iterator[str]:
        if base is not None and row.number < base:
            yield f"key {key}: an older row rose: {row}, but {base} was there"
            return
        given = next((each for each in known if each.batch.number == row.number), None)
        if given is None:
            yield f"key {key}: a row from nowhere: {row}"
            return
        if (row.mod, row.text) != (mod_of(key, row.number), given.text(key)):
            yield f"key {key}: a row of other values: {row}"
        floor = self._floors.get(key)
        if floor is not None and floor.removed and floor.number == row.number:
            yield f"key {key}: a removed row rose: {row}"
        if given.batch.ended(key):
            yield f"key {key}: a row that ends its key is seen: {row}"
        yield from self._changed(key, given, row, span)

    def _changed(self, key: int, given: Given, row: Shown, span: tuple[int, int]) -> Iterator[str]:
        """Yield what is wrong with the changes that requests have made to a row."""
        began, ended = span
        told = [int(tag) for tag in row.tags.split(SEPARATOR)[1:]]
        tags = frozenset(told)
        floor = self._floors.get(key)
        before = floor if floor is not None and floor.number == row.number else None
        if len(tags) < len(told):
            yield f"key {key}: a request changed a row twice: {row}"
        if before is not None and not before.tags <= tags:
            yield f"key {key}: changes {set(before.tags)} were taken back: {row}"
        for wish in (self._wishes.get(number) for number in sorted(tags)):
            if wish is None or wish.delete is not None or not wish.touches(key, given):
                yield f"key {key}: changed by a request that does not mean it: {row}"
            elif not wish.may(given, ended) or _was_over(wish, before):
                yield f"key {key}: changed by {wish.number} after it was over: {row}"
        for wish in self._wishes.values():
            if wish.touches(key, given) and wish.must(given, began) and wish.number not in tags:
                what = "changed" if wish.delete is None else "deleted"
                yield f"key {key}: not {what} by {wish.number}: {row}"
        self._floors[key] = Floor(row.number, removed=False, tags=tags, began=began)


def _was_over(wish: Wish, before: Floor | None) -> bool:
    """Return whether a request was over when a scan last showed the row without its change."""
    if before is None or wish.number in before.tags:
        return False
    return wish.ended is not None and wish.ended < before.began
