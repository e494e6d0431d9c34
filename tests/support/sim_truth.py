"""The truth, against which every write of a simulation is held at once.

Told what clients were promised, it asserts the invariants of the metadata protocol on
what a write has touched: rows and files, reservations, requests, tablets, readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from common.metadata.changes.selections import may_hold_range
from common.metadata.codec.table import unpack_name
from common.metadata.keys import TABLES
from common.metadata.keyspace import Command
from common.model.job import Kind
from common.model.request import Request, RequestState, TransformKind
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, OperationStep, Record, TabletId
from tests.support.memory_store import MemoryKeyspace
from tests.support.sim_disk import Disk, key_bytes
from tests.support.sim_views import NOTHING, Touched, View, Views

_AFTER = {
    None: {RequestState.ACTIVE},
    RequestState.ACTIVE: {
        RequestState.CANCELLING,
        RequestState.DONE,
        RequestState.DONE_IN_PART,
    },
    RequestState.CANCELLING: {RequestState.CANCELLED, RequestState.FAILED},
}


class Truth:
    """Checks the server against disk and promises after every write."""

    def __init__(self, memory: MemoryKeyspace) -> None:
        self.memory = memory
        self.disk = Disk()
        self.disk.on_delete = self._deleted
        self.views: dict[TabletId, View] = {}
        self.requests: dict[tuple[str, str], Request] = {}
        self.states: dict[str, TableState | None] = {}
        self.offered: dict[str, dict[int, None]] = {}
        """Table → rows that somebody has tried to add."""
        self.acknowledged: dict[str, dict[int, None]] = {}
        self.holders: dict[str, str] = {}
        """Attempt → the one incarnation that was given it."""
        self.pinned: dict[str, tuple[str, ...]] = {}
        """Pin → files that its reader has listed."""
        self.sleeps = False
        self.storage_fails = False
        """Whether storage fails now and then, so that what was done well may come to nothing."""
        """Whether nothing is checked any more: the store has gone back, and breaks its word."""
        self.seen: Counter[str] = Counter()
        self._kept: dict[str, str] = {}
        """Table that somebody was told of, and that nobody has begun to drop → its name."""
        self._dropped: dict[str, None] = {}
        """Tables that are gone, as somebody was told."""
        self._reads = Views(memory)
        self._where: dict[str, TabletId] = {}
        """Visible file → its tablet."""
        self._row_in: dict[str, dict[int, str]] = {}
        """Table → visible row → its file."""
        self._chosen: dict[tuple[TabletId, str], tuple[int, ...]] = {}
        """Standing selection → the rows that its request's transform must touch."""

    # What others tell.

    def promise(self, table: str, rows: Iterable[int]) -> None:
        """Note rows whose add was acknowledged: they are visible from now on."""
        rows = list(rows)
        self.acknowledged.setdefault(table, {}).update(dict.fromkeys(rows))
        if self.drops(table):
            return
        lost = [row for row in rows if row not in self._row_in.get(table, {})]
        assert not lost, f"{table}: acknowledged rows are not visible: {lost}"

    def assigned(self, attempt: str, holder: str) -> None:
        """Note who was given an attempt: never two."""
        known = self.holders.setdefault(attempt, holder)
        assert known == holder, f"attempt {attempt} was given to {known} and to {holder}"

    def pin(self, pin: str, paths: tuple[str, ...]) -> None:
        """Note what a reader has listed under its pin."""
        lost = [path for path in paths if path not in self.disk.files]
        assert not lost, f"reader {pin} has listed {lost}, which are gone"
        self.pinned[pin] = paths

    def drops(self, table: str) -> bool:
        """Return whether a table goes or is gone."""
        return self.states.get(table) not in {TableState.LIVE, TableState.PAUSED}

    def require_drop(self, table: str, why: str) -> None:
        """Refuse what may only happen to a table that goes or is gone."""
        assert self.drops(table), why

    def created(self, table: Table) -> None:
        """Note that a client was told of a table: it is live and has its name."""
        self._kept[table.id] = table.name
        self.seen["tables created"] += 1
        assert not self.drops(table.id), f"{table.id} is {self.states.get(table.id)}"
        assert self._names().get(table.name) == table.id, f"{table.id} has no name"

    def drop_begins(self, table: str) -> None:
        """Note that a client wants a table dropped: it may go at any moment."""
        self._kept.pop(table, None)

    def dropped(self, table: str) -> None:
        """Note that a client was told that a table is gone: its name is free."""
        self._dropped[table] = None
        self.seen["tables dropped"] += 1
        assert self.states.get(table) is None, f"{table} is {self.states[table]}"
        assert table not in self._names().values(), f"{table} has a name"

    def unnamed(self) -> str:
        """Return which tables and names do not belong together, or nothing; for a time of rest."""
        names = self._names()
        states = {table: state for table, state in self.states.items() if state is not None}
        wrong = [table for table in states if self.drops(table)]
        if wrong:
            return f"tables are left behind: {wrong}"
        if sorted(names.values()) != sorted(states):
            return f"names are {names}, tables are {sorted(states)}"
        lost = [table for table, name in self._kept.items() if names.get(name) != table]
        if lost:
            return f"tables are lost, or their names: {lost}"
        back = [table for table in self._dropped if table in states]
        return f"tables are there again that were dropped: {back}" if back else ""

    def _names(self) -> dict[str, str]:
        stored = self.memory.values.hash(TABLES)
        found = [unpack_name(name, entry) for name, entry in stored.items()]
        return {each.name: each.id for each in found}

    def tablets(self, table: str) -> dict[TabletId, View]:
        """Return the tablets of a table, in order."""
        found = [(tablet, view) for tablet, view in self.views.items() if view.bounds]
        return dict(sorted(each for each in found if each[0].table == table))

    def record(self, tablet: TabletId) -> Record:
        """Return the record of a tablet."""
        return self._reads.record(tablet)

    def _deleted(self, path: str) -> None:
        where = self._where.get(path)
        assert where is None, f"{where}: the visible file {path} is deleted"
        for pin, paths in self.pinned.items():
            assert path not in paths, f"reader {pin} has lost {path}"

    # What writes do.

    def written(self, effects: Sequence[Command]) -> None:
        """Hold what a write has touched against the truth."""
        if self.sleeps:
            return
        touched = self._reads.touched(effects)
        for table in touched.tables:
            self._table_changed(table)
        for table, request in touched.requests:
            self._request_changed(table, request)
        if touched.tablets:
            before, after = self._read(touched)
            self._check_rows(before, after)
            for tablet, view in after.items():
                self._check_tablet(tablet, before[tablet], view)
            self._check_bounds(before, after)
        for end in touched.ends:
            self.seen[f"attempts {end}"] += 1
        self.seen["writes"] += 1

    def went_back(self) -> None:
        """A fail-over has forgotten writes: read everything anew, and check it as it stands."""
        everything = self._reads.all_keys()
        self.states = {table: self._reads.state(table) for table in everything.tables}
        found = {name: self._reads.request(*name) for name in everything.requests}
        self.requests = {name: request for name, request in found.items() if request is not None}
        self.views, self._where, self._row_in = {}, {}, {}
        before, after = self._read(everything)
        for table in everything.tables:
            own = {tablet: view for tablet, view in after.items() if tablet.table == table}
            self._check_rows({tablet: before[tablet] for tablet in own}, own)
        for tablet, view in after.items():
            self._check_tablet(tablet, view, view)
        for table in everything.tables:
            self._check_tiles(table)
            if not self.drops(table):
                rows = self._row_in.get(table, {})
                lost = [row for row in self.acknowledged.get(table, ()) if row not in rows]
                assert not lost, f"{table}: acknowledged rows are lost by a fail-over: {lost}"
        self._chosen.clear()
        for tablet, view in after.items():
            self._note_selection(tablet, NOTHING, view)

    def _read(self, touched: Touched) -> tuple[dict[TabletId, View], dict[TabletId, View]]:
        before = {tablet: self.views.get(tablet, NOTHING) for tablet in touched.tablets}
        after = {
            tablet: self._reads.tablet(tablet, before[tablet], tuple(parts))
            for tablet, parts in touched.tablets.items()
        }
        self.views.update(after)
        return before, after

    def _table_changed(self, table: str) -> None:
        self.states[table] = self._reads.state(table)

    def _request_changed(self, table: str, name: str) -> None:
        before = self.requests.get((table, name))
        after = self._reads.request(table, name)
        if after is None:
            self.requests.pop((table, name), None)
            return
        self.requests[table, name] = after
        state = before.state if before else None
        if state is after.state:
            return
        allowed = _AFTER.get(state, set())
        assert after.state in allowed, f"{name}: {state} becomes {after.state}"
        self.seen[f"requests {after.state.value}"] += 1
        if not after.state.ended:
            return
        done = after.state in (RequestState.DONE, RequestState.DONE_IN_PART)
        whole = after.state is not RequestState.DONE or not after.cancelled_ranges
        assert whole, f"{name} is DONE, but {after.cancelled_ranges} were cancelled"
        for tablet, view in self.tablets(table).items():
            self._check_nothing_of(name, tablet, view)
            if done and view.bounds and may_hold_range(after.range, view.bounds):
                assert name in view.done, f"{name} is {after.state}, but not in {tablet}"

    def _check_nothing_of(self, name: str, tablet: TabletId, view: View) -> None:
        held = view.selection is not None and view.selection.request == name
        runs = [attempt for attempt, entry in view.running.items() if entry.request == name]
        left = name in view.waiting or held or runs
        assert not left, f"{tablet}: something of {name} is left, which has ended"

    # Rows and files.

    def _check_rows(self, before: Mapping[TabletId, View], after: Mapping[TabletId, View]) -> None:
        """Hold files that came and went against each other: no row is lost or doubled."""
        old = {path for view in before.values() for path in view.files if path in self._where}
        new = self._placed(old, after)
        gone = sorted(old.difference(new))
        came = [path for path in new if path not in old]
        if gone or came:
            table = next(iter(after)).table
            where = self._row_in.setdefault(table, {})
            left = {row for path in gone for row in self.disk.ever(path)}
            for row in left:
                where.pop(row, None)
            for path in came:
                self._came(new[path], path, after[new[path]], where)
                left.difference_update(self.disk.files[path])
            assert not left or self.drops(table), f"{table}: rows are lost: {sorted(left)}"
        for path in gone:
            del self._where[path]
        self._where.update(new)

    def _placed(self, old: set[str], after: Mapping[TabletId, View]) -> dict[str, TabletId]:
        """Return which tablet holds which file: each is in one."""
        new: dict[str, TabletId] = {}
        for tablet, view in after.items():
            for path in view.files:
                other = new.get(path) or (None if path in old else self._where.get(path))
                assert other is None, f"{path} is in {other} and in {tablet}"
                new[path] = tablet
        return new

    def _came(self, tablet: TabletId, path: str, view: View, where: dict[int, str]) -> None:
        rows = self.disk.files.get(path)
        assert rows is not None, f"{tablet}: the visible file {path} is not on disk"
        offered, file = self.offered.get(tablet.table, {}), view.files[path]
        assert file.rows == len(rows), f"{tablet}: {path} says {file.rows} rows, holds {len(rows)}"
        for row, touches in rows.items():
            assert row in offered, f"{tablet}: row {row} comes from nowhere"
            assert row not in where, f"{tablet}: row {row} is in {where[row]} and in {path}"
            where[row] = path
            if len(touches) > 1:
                twice = [name for name, times in Counter(touches).items() if times > 1]
                assert not twice, f"{tablet}: row {row} was transformed twice by {twice}"

    # One tablet.

    def _check_tablet(self, tablet: TabletId, before: View, view: View) -> None:
        if view.bounds is None:
            assert view.empty, f"{tablet}: there is no such tablet, but it has keys"
            return
        held = [path for entry in view.running.values() for path in entry.inputs]
        assert len(held) == len(set(held)), f"{tablet}: a file is in two reservations: {held}"
        missing = sorted(set(held) - view.files.keys())
        assert not missing, f"{tablet}: reserved files are not there: {missing}"
        self._check_selection(tablet, view)
        self._check_tags(tablet, before, view)
        for attempt, entry in view.running.items():
            if attempt not in before.running:
                self._check_reserved(tablet, attempt, before, view)
            if entry.request is not None:
                self._check_active(tablet, entry.request, "runs")
        for name in view.waiting:
            assert view.selection is None, f"{tablet}: {name} waits beside a selection"
            self._check_active(tablet, name, "waits")
        self._check_done(tablet, before, view)
        self._note_selection(tablet, before, view)
        for path, file in view.files.items():
            if path in before.files and before.bounds == view.bounds:
                continue
            assert file.key_min is not None, path
            assert file.key_max is not None, path
            inside = view.bounds.holds(file.key_min, file.key_max)
            assert inside, f"{tablet}: {path} lies outside of {view.bounds}"

    def _check_tags(self, tablet: TabletId, before: View, view: View) -> None:
        """Assert that a file gets other tags only when an attempt ends that had reserved it."""
        ended = [entry for name, entry in before.running.items() if name not in view.running]
        held = {path for entry in ended for path in entry.inputs}
        for path in before.files.keys() & view.files.keys():
            if before.files[path].tags != view.files[path].tags:
                assert path in held, f"{tablet}: {path} has other tags, and no attempt has ended"
                self.seen["files moved"] += 1

    def _check_reserved(self, tablet: TabletId, attempt: str, before: View, view: View) -> None:
        entry = view.running[attempt]
        self.seen["reservations " + entry.kind.value] += 1
        if entry.kind is Kind.SYSTEM:
            first = before.waiting or view.waiting
            assert not first, f"{tablet}: system attempt {attempt} begins though {first} waits"
        step = before.operation.step if before.operation else None
        free = step in {None, OperationStep.CUT}
        assert free, f"{tablet}: attempt {attempt} begins under {before.operation}"

    def _check_selection(self, tablet: TabletId, view: View) -> None:
        files = set(view.selection.files) if view.selection else set()
        owner = view.selection.request if view.selection else ""
        if view.selection:
            assert files, f"{tablet}: the selection of {owner} is empty"
            assert files <= view.files.keys(), f"{tablet}: selected files of {owner} are gone"
            self._check_active(tablet, owner, "holds files")
        for attempt, entry in view.running.items():
            inputs = set(entry.inputs)
            if entry.kind is Kind.SYSTEM:
                taken = sorted(inputs & files)
                assert not taken, f"{tablet}: system attempt {attempt} holds selected {taken}"
            else:
                own = owner == entry.request and inputs <= files
                assert own, f"{tablet}: attempt {attempt} is outside of its request's selection"

    def _check_active(self, tablet: TabletId, name: str, how: str) -> None:
        request = self.requests.get((tablet.table, name))
        assert request is not None, f"{tablet}: {name} {how}, but does not exist"
        assert not request.state.ended, f"{tablet}: {name} {how}, but is {request.state}"

    def _note_selection(self, tablet: TabletId, before: View, view: View) -> None:
        old, new = before.selection, view.selection
        if new is not None and (old is None or old.request != new.request):
            request = self.requests[tablet.table, new.request]
            self._chosen[tablet, new.request] = tuple(self._wanted(request, new.files))
            self.seen["selections"] += 1
        elif new is None and old is not None:
            self._chosen.pop((tablet, old.request), None)

    def _wanted(self, request: Request, paths: Iterable[str]) -> list[int]:
        """Return the rows of files that a request's transform is for."""
        if request.transform.kind is TransformKind.NONE:
            return []
        key_of, holds = self.disk.key_of, request.range.holds
        rows = [row for path in paths for row in self.disk.ever(path)]
        return [row for row in rows if holds(key_bytes(key_of[row]))]

    def _check_done(self, tablet: TabletId, before: View, view: View) -> None:
        """Assert that a request which is done here has touched every row that it chose."""
        held = before.selection
        if held is None or held.request not in view.done or held.request in before.done:
            return
        name = held.request
        request = self.requests[tablet.table, name]
        where = self._row_in.get(tablet.table, {})
        key_of = self.disk.key_of
        # The judge is rows: those that were cancelled since may be as they were.
        chosen = [
            row
            for row in self._chosen.get((tablet, name), ())
            if request.means(key_bytes(key_of[row]))
        ]
        for row in chosen:
            touches = self.disk.files[where[row]][row]
            assert name in touches, f"{tablet}: {name} is done, but row {row} was not transformed"
        self.seen["rows transformed"] += len(chosen)
        self.seen["selections done"] += 1

    # All tablets.

    def _check_bounds(
        self, before: Mapping[TabletId, View], after: Mapping[TabletId, View]
    ) -> None:
        moved = [tablet for tablet, view in after.items() if view.bounds != before[tablet].bounds]
        if not moved or self.drops(moved[0].table):
            return
        for tablet in moved:
            view = before[tablet]
            busy = view.running or view.selection or view.waiting or view.done
            assert not busy, f"{tablet}: its bounds change under {view}"
        if any(before[tablet].bounds for tablet in moved):
            grown = len([each for each in moved if after[each].bounds is None])
            self.seen["merges" if grown else "splits"] += 1
        self._check_tiles(moved[0].table)

    def _check_tiles(self, table: str) -> None:
        if self.drops(table):
            return
        reached = None
        for tablet, view in self.tablets(table).items():
            assert view.bounds is not None, tablet
            assert view.bounds.start == reached, f"{tablet}: begins at {view.bounds.start!r}"
            reached = tablet.end
        assert reached == PLUS_INFINITY, f"{table}: its tablets end at {reached!r}"
