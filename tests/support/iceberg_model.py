"""The explicit-state model of `lake_model` for a table with sequence numbers and delete files.

A catalog has one branch, `main`, and gives sequence numbers. A snapshot names data files, position
deletes and equality deletes. Other writers append, delete by copies, positions and values, insert
deleted values again, compact, go back to any retained snapshot, commit to another branch, add a
file a second time, expire snapshots and remove orphans. Attempts run the product's own rules, and
its own decision of which delete files go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

from common.lake.iceberg.commit import HeadFiles, dangling
from common.lake.iceberg.manifests import DeleteFile
from common.lake.source import Commit, LakeFile, LakeOutput, Look, Planned, Sighting, Snapshot
from tests.support.lake_model import (
    EVENTS,
    ROWS,
    TABLE,
    Attempt,
    Explorer,
    Scenario,
    kinds_left,
    new_file,
    outputs_of,
)

VALUES = 100
"""The value of a row is its number modulo this; rows that are inserted again share it."""


class Positions(NamedTuple):
    """A file of position deletes of one data file."""

    name: str
    number: int
    path: str
    rows: tuple[int, ...]


class Equality(NamedTuple):
    """A file of equality deletes of one value."""

    name: str
    number: int
    value: int


class Snap(NamedTuple):
    """A snapshot: its sequence number, its files, and the attempt that committed it."""

    number: int
    kind: str
    data: frozenset[tuple[str, int]]
    """Data files with their sequence numbers."""
    positions: frozenset[Positions] = frozenset()
    equality: frozenset[Equality] = frozenset()
    attempt: str = ""


class Catalog(NamedTuple):
    """One state of everything. The names that `lake_model.World` has mean the same."""

    main: Snap
    retained: frozenset[Snap]
    branch: Snap | None
    last: int
    """Last sequence number."""
    truth: frozenset[int]
    stored: frozenset[str]
    """Data files, and files of position deletes that attempts have written."""
    committed: frozenset[tuple[str, int]]
    attempts: tuple[Attempt, ...]
    requests: frozenset[tuple[Snap, Snap]]
    budget: tuple[int, ...]


@cache
def names_of(snap: Snap) -> frozenset[str]:
    """Return the files of a snapshot that `Catalog.stored` is about."""
    own = {delete.name for delete in snap.positions if delete.name.startswith("d")}
    return frozenset({path for path, _ in snap.data} | own)


@cache
def _in_order(snaps: frozenset[Snap]) -> tuple[Snap, ...]:
    """Return snapshots in an order that is the same in each process."""
    return tuple(sorted(snaps, key=repr))


def _positions(snap: Snap, path: str, number: int) -> tuple[Positions, ...]:
    applied = (delete for delete in snap.positions if delete.path == path)
    return tuple(sorted(delete for delete in applied if delete.number >= number))


def _equality(snap: Snap, number: int) -> tuple[Equality, ...]:
    return tuple(sorted(delete for delete in snap.equality if delete.number > number))


def _matched(path: str, deletes: Sequence[Equality]) -> tuple[int, ...]:
    values = {delete.value for delete in deletes}
    return tuple(at for at, row in enumerate(ROWS[path]) if row % VALUES in values)


@cache
def live_rows(snap: Snap, path: str, number: int) -> tuple[int, ...]:
    """Return the rows of a data file that no delete removes."""
    gone = {row for delete in _positions(snap, path, number) for row in delete.rows}
    gone |= set(_matched(path, _equality(snap, number)))
    return tuple(row for at, row in enumerate(ROWS[path]) if at not in gone)


@cache
def rows_of(snap: Snap) -> tuple[int, ...]:
    """Return the rows of a snapshot, doubled ones twice."""
    return tuple(sorted(row for file in snap.data for row in live_rows(snap, *file)))


@cache
def snapshot_of(snap: Snap, last: int) -> Snapshot:
    """Return a snapshot as the source of a table does."""
    files = {path: _file(snap, path, number) for path, number in sorted(snap.data)}
    return Snapshot(snap.number, TABLE, files=files, newest=last, state=snap)


def _file(snap: Snap, path: str, number: int) -> LakeFile:
    deletes = _positions(snap, path, number)
    equality = tuple(sorted((item.number, item.name) for item in _equality(snap, number)))
    identity = " ".join(delete.name for delete in deletes)
    return LakeFile(
        path,
        1,
        len(ROWS[path]),
        deleted_rows=len({row for delete in deletes for row in delete.rows}),
        deletes=identity,
        entry=",".join(str(row) for row in sorted({r for d in deletes for r in d.rows})),
        sequence=number,
        equality=equality,
    )


def positions_of(file: LakeFile) -> Any:
    """Return the positions that position deletes of a file remove."""
    return np.array([int(word) for word in file.entry.split(",") if word], np.uint64)


# ------------------------------------------------------------------------------------ Other writers


def _row(number: int, kind: int, value: int) -> int:
    """Return a row with a value, which no other snapshot and no other kind of event inserts."""
    return VALUES * (3 * number + kind) + value % VALUES


def _written(world: Catalog, snap: Snap, truth: frozenset[int]) -> Catalog:
    return world._replace(
        main=snap,
        retained=world.retained | {snap},
        last=snap.number,
        truth=truth,
        stored=world.stored | {path for path, _ in snap.data},
    )


def writers(world: Catalog) -> Iterator[tuple[str, Catalog]]:
    """Yield what other writers may do next: the kind of the event, and the world after it."""
    left = kinds_left(world.budget)
    main, number = world.main, world.last + 1

    def next_snap(kind: str, **changes: Any) -> Snap:
        return main._replace(number=number, kind=kind, attempt="", **changes)

    if "append" in left:
        row = _row(number, 0, 10 + number)
        data = main.data | {(new_file("f", number, [row]), number)}
        yield "append", _written(world, next_snap("append", data=data), world.truth | {row})
    if "compact" in left and len(main.data) > 1:
        yield "compact", _written(world, _compacted(main, number), world.truth)
    if "branch" in left:
        path = new_file("g", number, [_row(number, 1, 50 + number)])
        snap = next_snap("branch", data=main.data | {(path, number)})
        yield (
            "branch",
            _written(world, snap, world.truth)._replace(main=main, branch=snap),
        )
    yield from _put_backs(world, left)
    if not left.isdisjoint(("copy", "position", "equality", "upsert")):
        yield from _row_deletes(world, left)
    if "rollback" in left:
        yield from _rollbacks(world)


def _put_backs(world: Catalog, left: frozenset[str]) -> Iterator[tuple[str, Catalog]]:
    main, number = world.main, world.last + 1
    for path, old in sorted(main.data) if "put_back" in left else ():
        data = main.data - {(path, old)} | {(path, number)}
        snap = main._replace(number=number, kind="put_back", attempt="", data=data)
        yield "put_back", _written(world, snap, frozenset(rows_of(snap)))


def _rollbacks(world: Catalog) -> Iterator[tuple[str, Catalog]]:
    """Yield the branch at each other snapshot, older or newer."""
    for snap in _in_order(world.retained - {world.main}):
        if snap != world.branch and names_of(snap) <= world.stored:
            yield "rollback", world._replace(main=snap, truth=frozenset(rows_of(snap)))


def _compacted(main: Snap, number: int) -> Snap:
    merged = sorted(main.data)[:2]
    rows = tuple(row for file in merged for row in live_rows(main, *file))
    paths = {path for path, _ in merged}
    new = {(new_file("m", number, rows), number)} if rows else set()
    return main._replace(
        number=number,
        kind="compact",
        attempt="",
        data=main.data - set(merged) | new,
        positions=frozenset(item for item in main.positions if item.path not in paths),
    )


def _row_deletes(world: Catalog, left: frozenset[str]) -> Iterator[tuple[str, Catalog]]:
    """Yield deletions of one row: by a copy, by its position, by its value, or to change it."""
    main, number = world.main, world.last + 1
    for path, old in sorted(main.data):
        rows = live_rows(main, path, old)
        for at, row in enumerate(ROWS[path]):
            if row not in rows:
                continue
            truth, later = world.truth - {row}, main._replace(number=number, attempt="")
            if "copy" in left:
                rest = [other for other in rows if other != row]
                new = {(new_file("c", number, rest), number)} if rest else set()
                snap = later._replace(kind="copy", data=main.data - {(path, old)} | new)
                yield "copy", _written(world, snap, truth)
            if "position" in left:
                delete = Positions(f"p{number}:{path}:{at}", number, path, (at,))
                snap = later._replace(kind="position", positions=main.positions | {delete})
                yield "position", _written(world, snap, truth)
            value = row % VALUES
            equal = Equality(f"e{number}:{value}", number, value)
            gone = frozenset(other for other in world.truth if other % VALUES == value)
            if "equality" in left:
                snap = later._replace(kind="equality", equality=main.equality | {equal})
                yield "equality", _written(world, snap, world.truth - gone)
            if "upsert" in left:
                again = _row(number, 2, value)
                data = main.data | {(new_file("U", number, [again]), number)}
                snap = later._replace(kind="upsert", data=data, equality=main.equality | {equal})
                yield "upsert", _written(world, snap, world.truth - gone | {again})


def maintenance(world: Catalog) -> Iterator[tuple[str, Catalog]]:
    """Yield expired snapshots, and removals of files that no snapshot names."""
    left = kinds_left(world.budget)
    for snap in _in_order(world.retained - {world.main}) if "expire" in left else ():
        if snap != world.branch:
            retained = world.retained - {snap}
            kept = set[str]().union(*map(names_of, retained))
            stored = world.stored - (names_of(snap) - kept)
            yield "expire", world._replace(retained=retained, stored=stored)
    if "orphans" not in left:
        return
    named = set[str]().union(*map(names_of, world.retained))
    fresh = {
        path
        for attempt in world.attempts
        if not attempt.is_old
        for path in world.stored
        if path.startswith((f"o{attempt.name}-", f"d{attempt.name}-"))
    }
    stored = world.stored & (named | fresh)
    if stored != world.stored:
        yield "orphans", world._replace(stored=stored)


# ----------------------------------------------------------------------------------------- Attempts


class IcebergExplorer(Explorer):
    """All worlds of one model that events lead to."""

    def _first(self) -> Any:
        scenario: Scenario = self.model.scenario
        deletes = frozenset(
            Positions("p2:b", 2, "b", scenario.first_deletes) for _ in scenario.first_deletes[:1]
        )
        first = Snap(2, "first", frozenset({("a", 1), ("b", 2)}), deletes)
        return Catalog(
            main=first,
            retained=frozenset({first}),
            branch=None,
            last=2,
            truth=frozenset(rows_of(first)),
            stored=frozenset({"a", "b"}),
            committed=frozenset(),
            attempts=(),
            requests=frozenset(),
            budget=tuple(scenario.budget.get(kind, 0) for kind in EVENTS),
        )

    def _problem(self, world: Any) -> str:
        rows = rows_of(world.main)
        if rows != tuple(sorted(world.truth)):
            return f"the table has rows {rows}, expected {sorted(world.truth)}"
        for snap in world.retained:
            if missing := names_of(snap) - world.stored:
                return f"snapshot {snap.number} names {sorted(missing)}, which are deleted"
        names = [name for name, _ in world.committed]
        if len(names) != len(set(names)):
            return f"an attempt is committed twice: {sorted(world.committed)}"
        return ""

    def _others(self, world: Any) -> Any:
        return itertools.chain(writers(world), maintenance(world))

    def _load(self, world: Any, since: int) -> Snapshot:
        return snapshot_of(world.main, world.last)

    def _positions(self, file: LakeFile) -> Any:
        return positions_of(file)

    def _named(self, world: Any) -> set[str]:
        return set[str]().union(*map(names_of, world.retained))

    def _newest(self, world: Any) -> int:
        if "the head's number in place of the last one" in self.model.faults:
            return int(world.main.number)
        return int(world.last)

    def _look(self, world: Any, name: str, outputs: frozenset[str], since: int) -> Sighting:
        later = [snap for snap in world.retained if snap.number > since]
        for snap in _in_order(frozenset(later)):
            if snap.attempt == name:
                own = outputs & {path for path, _ in snap.data}
                return Sighting(Look.FOUND, snap.number, own)
        for snap in (world.main, world.branch):
            if snap is not None and outputs & {path for path, _ in snap.data}:
                return Sighting(Look.FOUND, snap.number, outputs)
        missing = set(range(since + 1, world.last + 1)) - {snap.number for snap in later}
        if missing and "look without missing snapshots" not in self.model.faults:
            return Sighting(Look.CANNOT_TELL, world.last)
        return Sighting(Look.ABSENT, world.last)

    def _rewritten(self, world: Any, name: str) -> tuple[Planned, tuple[LakeOutput, ...]] | None:
        main: Snap = world.main
        inputs = sorted(main.data)[:2]
        if len(inputs) < 2:
            return None
        head = snapshot_of(main, world.last)
        files = [head.files[path] for path, _ in inputs]
        matched = {
            path: np.array(_matched(path, _equality(main, number)), np.uint64)
            for path, number in inputs
        }
        planned = Planned(
            TABLE,
            head.version,
            {file.path: file.deletes for file in files},
            {file.path: positions_of(file) for file in files},
            {file.path: file.sequence for file in files},
            {file.path: file.equality for file in files},
            matched,
        )
        left_out = [
            (
                file.path,
                tuple(sorted({*map(int, positions_of(file)), *map(int, matched[file.path])})),
            )
            for file in files
        ]
        division = self.model.scenario.division
        # Numbers of outputs differ by all that was ever written: two heads may share a number.
        return planned, tuple(outputs_of(name, world.last, left_out, division))

    # -------------------------------------------------------------------------------------- Send

    def _sends(self, world: Any, attempt: Attempt, step: Any) -> Any:
        last = step.head.last_version
        changed = attempt._replace(tries=(*attempt.tries, (last, frozenset())))
        _, snap = self._request(changed, step)
        named = {item.name for item in step.head.state.positions}
        written = {item.name for item in snap.positions if item.name.startswith("d")} - named
        kept, gone = [], set[str]()
        for version, names in attempt.tries:
            if version >= last and "tries are cleaned at once" not in self.model.faults:
                kept.append((version, names))
            else:
                kept.append((version, frozenset()))
                gone |= names
        changed = attempt._replace(tries=(*kept, (last, frozenset(written))))
        attempts = tuple(changed if other == attempt else other for other in world.attempts)
        stored = world.stored - (gone - named) | written
        yield from super()._sends(world._replace(attempts=attempts, stored=stored), changed, step)

    def _request(self, attempt: Attempt, step: Any) -> tuple[Snap, Snap]:
        """Return the snapshot that an attempt sends, after the one that it expects."""
        base: Snap = step.head.state
        verdict, number = step.verdict, step.head.last_version + 1
        planned = attempt.planned
        gone = self._dangling(base, step, planned)
        removed = {(file.path, file.sequence) for file in verdict.removed}
        outputs = {
            (output.path, self._number_of(planned, number, verdict)) for output in verdict.outputs
        }
        moved = {
            Positions(
                f"d{attempt.name}-{len(attempt.tries)}:{path}", number, path, tuple(map(int, rows))
            )
            for path, rows in verdict.deletes.items()
        }
        return base, Snap(
            number,
            "ours",
            base.data - removed | outputs,
            frozenset(item for item in base.positions if item.name not in gone) | moved,
            frozenset(item for item in base.equality if item.name not in gone),
            attempt.name,
        )

    def _number_of(self, planned: int, number: int, verdict: Any) -> int:
        """Return the sequence number of the outputs."""
        if "outputs get the new number" in self.model.faults:
            return number
        if "outputs get the least number of inputs" in self.model.faults:
            return min(file.sequence for file in verdict.removed)
        return planned

    def _dangling(self, base: Snap, step: Any, planned: int) -> frozenset[str]:
        head: Snapshot = step.head
        faults = self.model.faults
        if "delete files go though outputs need them" in faults:
            planned = 10**6
        commit = Commit(head, "", step.verdict.outputs, step.verdict.removed, sequence=planned)
        if "delete files go though other files need them" in faults:
            removed = {file.path: file for file in step.verdict.removed}
            empty = Snapshot(head.version, TABLE, files=removed)
            commit = Commit(empty, "", commit.outputs, commit.removed, sequence=planned)
        return dangling(commit, HeadFiles(str, _delete_files(base)))

    def _put(self, world: Any, request: tuple[Snap, Snap]) -> Any:
        base, snap = request
        faults = self.model.faults
        if base != world.main and "the branch may have moved" not in faults:
            return None
        if snap.number <= world.last and "numbers may be given twice" not in faults:
            return None
        return world._replace(
            main=snap,
            retained=world.retained | {snap},
            last=max(world.last, snap.number),
            committed=world.committed | {(snap.attempt, snap.number)},
        )


@cache
def _delete_files(snap: Snap) -> tuple[DeleteFile, ...]:
    positions = [
        _delete_file(item.name, item.number, (), item.path) for item in sorted(snap.positions)
    ]
    return (*positions, *(_delete_file(item.name, item.number, (1,), "") for item in snap.equality))


def _delete_file(name: str, number: int, ids: tuple[int, ...], path: str) -> DeleteFile:
    values: Mapping[str, Any] = {
        "path": name,
        "manifest": "m",
        "equality_ids": ids,
        "sequence": number,
        "partition": (),
        "is_global": True,
        "rows": 1,
        "size_bytes": 1,
        "path_min": path,
        "path_max": path,
    }
    return DeleteFile(**cast("dict[str, Any]", values))
