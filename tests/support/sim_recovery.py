"""A table that is lost, dropped, rebuilt, restored and made again in one location, from one seed.

Verbs of operators are broken off at any of their writes, and repeated. Meanwhile rows come in,
calls are repeated under their ids, jobs run, manifests are published, and collectors stand still
right before a deletion. However a story goes:

* every acknowledged row is in the table once, when a rebuild has said that nothing is lost;
* what a drop with its files has deleted never comes back;
* a name is free again when its drop was repeated and the collector is through;
* no file that the table holds is ever deleted.

python -m tests.support.sim_recovery 17 0-999
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from common.errors import UnavailableError, UnknownOutcomeError, UnknownTableError
from common.parquet import location as locations
from coordinator.storage import garbage_collector
from neve import api
from neve.gateway.rows import add
from neve.recovery.rebuild import live_files
from neve.recovery.rebuild.table_rebuild import RebuildOptions
from neve.recovery.repair import RepairOptions
from neve.recovery.scope import NOTES, FindingCode
from tests.support.sim_callers import body_of
from tests.support.sim_clients import call_id_of
from tests.support.sim_options import draw_options
from tests.support.sim_recovery_site import (
    GRACE_S,
    RETIRED_S,
    SCHEMA,
    Doom,
    End,
    RecoverySite,
    SiteDisk,
    SiteGateway,
)
from tests.support.sim_run import Setting, as_simulated, main, set_to

NAME = "events"
STEPS = 10
ON_ITS_WAY_S = 60.0
TRIES_MAX = 8
"""So often an operator repeats a verb, with rounds of the coordinator in between."""
USER_FILES = 2
WRITES_MAX = 12
CALLS_SURVIVE = True
"""Whether a call of before a rebuild or a restore may be repeated after it, and counts once."""
LEFT = {*NOTES, FindingCode.ORPHANED, FindingCode.EVIDENCE, FindingCode.FOREIGN}
"""What a check may find of earlier tables and calls that were broken off."""


@dataclass
class Call:
    """A call that brings in rows, and may be repeated."""

    id: str
    method: str
    content: Any
    ids: frozenset[int]


@dataclass
class Ledger:
    """Ids of rows: what must be in the table, and what may be."""

    must: set[int] = field(default_factory=set)
    may: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    """Acknowledged once, and dropped with their files."""
    former: set[int] = field(default_factory=set)
    """Rows whose files may lie there, and that only a rebuild may take in."""
    twofold: set[int] = field(default_factory=set)
    """Rows of two stories: of before a restore and after it."""

    def check(self, who: str, found: Sequence[int]) -> None:
        """Assert that a reader has found what it should."""
        seen = Counter(found)
        lost = self.must - seen.keys()
        assert not lost, f"{who}: acknowledged rows are lost: {sorted(lost)}"
        double = {row for row, count in seen.items() if count > 1} - self.twofold
        assert not double, f"{who}: rows are doubled: {sorted(double)}"
        back = self.deleted & seen.keys()
        assert not back, f"{who}: deleted rows are back: {sorted(back)}"
        strange = seen.keys() - self.may
        assert not strange, f"{who}: rows of nowhere: {sorted(strange)}"


class Story:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = Random(f"recovery {seed}")
        self.site = RecoverySite(seed, folder)
        self.world = self.site.world
        self.place = folder / NAME
        self.keyed = self.dice.random() < 0.4
        self.publishes = self.dice.random() < 0.7
        self.breaks = self.dice.choice((0.0, 0.3, 0.6, 0.6))
        """Share of verbs that are broken off."""
        self.site.ghost_share = self.dice.choice((0.0, 0.1, 0.4))
        self.ledger = Ledger()
        self.calls: list[Call] = []
        self.archives: list[tuple[bytes, set[int], set[int]]] = []
        """Each with the rows that must and may be in it."""
        self.there = False
        """Whether the table is, as far as its users know."""
        self.kept = False
        """Whether its files are, since it was dropped."""
        self._rows = self._calls = 0
        self.clean = True
        """Whether the table knows all files that hold its rows: it was never rebuilt."""
        self.restored = False

    def seen(self) -> Counter[str]:
        """Return what happened."""
        return self.site.seen

    # ---- Verbs.

    def doom(self, share: float | None = None) -> Doom | None:
        """Draw whether a verb is broken off, and when."""
        if self.dice.random() >= (self.breaks if share is None else share):
            return None
        return Doom(self.dice.choice([*End]), self.dice.randrange(WRITES_MAX))

    def work(
        self, method: str, *values: object, doom: Doom | None = None, **named: object
    ) -> tuple[Any, Callable[[], Awaitable[Any]], Doom | None]:
        """Return a call of the gateway."""
        gateway: SiteGateway = self.site.gateway
        return gateway.process, partial(getattr(gateway, method), *values, **named), doom

    def ask(self, method: str, *values: object, doom: Doom | None = None) -> Any:
        """Return what a gateway answers; None: nothing, it was broken off."""
        self.world.tell("user", method, broken=doom)
        (answered,) = self.site.do(self.work(method, *values, doom=doom))
        self.world.tell("user", f"{method} answered", answer=str(answered)[:300])
        return answered

    def rounds(self, count: int = 1, *, doom: Doom | None = None) -> None:
        """Have a coordinator look after files."""
        for _ in range(count):
            upkeep = self.site.upkeep
            (error,) = self.site.do((upkeep.process, upkeep.round, doom))
            if error is not None:
                self.world.tell("user", "a round failed", error=str(error))
            self.site.pass_time(self.dice.choice((0.2, 1.0, GRACE_S)))

    # ---- Rows.

    def new_rows(self) -> tuple[list[int], pa.Table]:
        """Return new rows."""
        count = self.dice.choice((1, 2, 5))
        ids = [*range(self._rows, self._rows + count)]
        self._rows += count
        return ids, pa.table({"id": ids, "v": ids}, SCHEMA)

    def call_id(self) -> str:
        """Return an id of a call."""
        self._calls += 1
        return call_id_of(self.world.now_s(), 7, self._calls)

    def new_call(self) -> Call | None:
        """Return a call that nobody has made before."""
        ids, rows = self.new_rows()
        if self.dice.random() < 0.5:
            return Call(self.call_id(), "append", body_of(rows), frozenset(ids))
        path = f"mine/{self.dice.randrange(USER_FILES)}.parquet"
        full = self.place / path
        if full.exists():  # Users overwrite no file that lies there.
            return None
        full.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, full)
        self.world.after_work()
        return Call(self.call_id(), "add", [path], frozenset(ids))

    def bring_in(self, call: Call, answered: Any, *, tidies: bool = True) -> None:
        """Note what became of a call; who is refused may tidy up."""
        if isinstance(answered, api.Added):
            self.ledger.must |= call.ids
            self.site.seen["calls answered"] += 1
        elif answered is None or not self._refused(answered):
            self.calls.append(call)
        elif tidies and call.method == "add" and not call.ids & self.ledger.must:
            (self.place / call.content[0]).unlink(missing_ok=True)
            self.site.seen["adds refused"] += 1

    @staticmethod
    def _refused(answered: Any) -> bool:
        """Return whether nothing has come of a call, and nothing will."""
        open_ended = (UnavailableError, UnknownOutcomeError)
        return isinstance(answered, Exception) and not isinstance(answered, open_ended)

    def write(self) -> None:
        """Bring in rows."""
        if (call := self.new_call()) is None:
            return
        self.ledger.may |= call.ids
        answered = self.ask(
            call.method, NAME, call.content, call.id, doom=self.doom(self.breaks / 2)
        )
        self.bring_in(call, answered)
        if isinstance(answered, api.Added) and self.dice.random() < 0.5:
            self.calls.append(call)

    def repeat(self) -> None:
        """Make a call once more, under its id."""
        if not self.calls:
            return
        call = self.dice.choice(self.calls)
        if call.ids & self.ledger.deleted or call.ids & self.ledger.former:
            return  # Its table is gone: users know.
        self.site.seen["calls repeated"] += 1
        self.ledger.may |= call.ids
        if isinstance(self.ask(call.method, NAME, call.content, call.id), api.Added):
            self.ledger.must |= call.ids

    def compact(self) -> None:
        """Run jobs."""
        process = self.world.process(f"comp{self.dice.random()}")
        store = self.site.store(process)

        async def work() -> None:
            table = await store.table_named(NAME)
            if table is not None:
                await self.site.compact(store, table)

        self.site.do((process, work, self.doom()))

    # ---- The table.

    def create(self) -> None:
        """Make the table, however often it takes."""
        columns = tuple(api.Column(name=each.name, type=str(each.type)) for each in SCHEMA)
        settings = {"manifest_interval_s": 1.0} if self.publishes else {"manifest_interval_s": None}
        body = api.NewTable(
            name=NAME,
            location=str(self.place),
            schema=columns,
            key=("id",) if self.keyed else (),
            version_column="v" if self.keyed else None,
            splits=("6", "20") if self.keyed else (),
            settings=settings,
        )
        for number in range(TRIES_MAX):
            doom = self.doom() if number < TRIES_MAX // 2 else None
            answered = self.ask("create", body, doom=doom)
            if getattr(answered, "name", None) == NAME:
                self.there, self.kept, self.clean = True, False, True
                self.site.seen["tables made"] += 1
                return
            self.rounds()
            if "exists already" in str(answered):  # Half of it, by a call that was broken off.
                self.ask("drop", NAME, False)
            self.site.pass_time(GRACE_S)
        raise AssertionError(f"a table cannot be made: {answered}")

    def drop(self, *, delete: bool) -> None:
        """Drop the table, and wait until its name is free."""
        self.there, ledger = False, self.ledger
        answered = self.ask("drop", NAME, delete, doom=self.doom())
        self._finish_drop(answered, delete=delete)
        self.kept = not delete
        if delete:
            # What was never acknowledged may lie there, and what the table did not know any more.
            if self.clean:
                ledger.deleted |= ledger.must
                ledger.may -= ledger.must
            ledger.former |= ledger.may
            ledger.may = set()
            self.archives.clear()
            ledger.must = set()
        self.site.seen[f"tables dropped, {'with' if delete else 'without'} files"] += 1

    def _finish_drop(self, answered: Any, *, delete: bool) -> None:
        for _ in range(4 * TRIES_MAX):
            self.rounds()
            if isinstance(answered, UnknownTableError) and "no table is named" in str(answered):
                return
            answered = self.ask("drop", NAME, delete)
        raise AssertionError(f"a drop has no end: {answered}")

    def lose_store(self) -> None:
        """Lose the store, with all who were connected to it."""
        self.world.tell("server", "is lost")
        self.site.seen["stores lost"] += 1
        self.site.losses += 1
        for process in self.world._processes:
            if process.name.startswith(("gate", "coord", "comp")):
                process.alive = False
        self.site._upkeep = None
        for key in [*self.site.memory.values.keys()]:
            self.site.memory.values.remove(key)
        self.there, self.kept, self.clean = False, True, False

    def rebuild(self) -> None:
        """Make the table out of its files, whatever comes in between."""
        ledger, answered, self.clean = self.ledger, None, False
        self._recovered()
        ledger.may |= ledger.former
        if self.restored:
            ledger.twofold |= ledger.may
        for number in range(TRIES_MAX):
            calm = number >= TRIES_MAX // 2
            answered = self._try_rebuild(calm=calm)
            report = getattr(answered, "report", None)
            lost = None if report is None else report.lost
            if lost is not None and (not lost or (calm and self.two_stories)):
                self._note_lost(lost)
                break
            if getattr(answered, "code", "") == "retired":
                self._move_away(str(answered))
            if "no Parquet file" in str(answered) and not ledger.must:
                self.create()
                return
            self.rounds()
            if lost or "exists already" in str(answered) or answered is None:
                self._finish_drop(self.ask("drop", NAME, False), delete=False)
        else:
            raise AssertionError(f"a rebuild has no end: lost {lost}, answered {answered}")
        self.there = True
        self.site.seen["rebuilds"] += 1
        self.read("a scan after a rebuild")

    def _recovered(self) -> None:
        if not CALLS_SURVIVE:
            self.calls.clear()

    @property
    def two_stories(self) -> bool:
        """Whether files of other tables, or of after a backup, may lie there.

        Also after a deletion for a dropped table has taken the description of the next one: a
        rebuild then takes the table of the last manifest for the last one.
        """
        return bool(self.ledger.former) or self.restored or self.site.undescribed

    def _note_lost(self, lost: Sequence[str]) -> None:
        """Note what a report lists as not recovered; its table is resumed."""
        if not lost:
            return
        self.site.seen["rebuilds that list files"] += 1
        for path in lost:
            if (self.place / path).exists():
                self.ledger.must -= {*pq.read_table(self.place / path)["id"].to_pylist()}
        self.ask("resume", NAME)

    def _move_away(self, refusal: str) -> None:
        """Do what a refusal of a retired name asks for."""
        found = re.search(r"file (mine/\S+) of", refusal)
        assert found is not None, refusal
        (self.place / found[1]).unlink()
        self.site.seen["files with retired names"] += 1

    def _try_rebuild(self, *, calm: bool) -> Any:
        """Rebuild once; rows come in meanwhile, and a coordinator looks."""
        doom = None if calm else self.doom()
        given = {"key": ("id",), "version_column": "v"} if self.keyed else {"key": ()}
        options = RebuildOptions(name=NAME, given=given, adopt=True)
        self.world.tell("user", "rebuild", broken=doom)
        works = [self.work("rebuild", str(self.place), options, doom=doom)]
        call = None
        if not calm and self.dice.random() < 0.5:
            upkeep = self.site.upkeep
            works.append((upkeep.process, partial(self._rounds_beside, upkeep), None))
        if not calm and self.dice.random() < 0.5 and (call := self.new_call()) is not None:
            self.ledger.may |= call.ids
            process, late, _ = self.work(call.method, NAME, call.content, call.id)
            works.append((process, partial(self._later, late), None))
        answered, *others = self.site.do(*works)
        self.world.tell("user", "rebuild answered", answer=str(answered)[:300])
        if call is not None:
            self.bring_in(call, others[-1], tidies=False)
        return answered

    async def _rounds_beside(self, upkeep: Any) -> None:
        for _ in range(4):
            await upkeep.round()
            await asyncio.sleep(0.05)

    async def _later(self, late: Callable[[], Awaitable[Any]]) -> Any:
        await asyncio.sleep(self.world.random() * 0.3)
        return await late()

    def back_up(self) -> None:
        """Keep an archive."""
        must, before = set(self.ledger.must), self.world.now_s()
        found = self.ask("backup", NAME)
        if isinstance(found, bytes):
            self.archives.append((found, must, set(self.ledger.may)))
            self.site.seen["backups"] += 1
        assert self.world.now_s() >= before

    def restore(self) -> None:
        """Make the table out of an archive; rebuild it, if files of that are gone."""
        archive, must, may = self.dice.choice(self.archives)
        made = None
        for number in range(TRIES_MAX):
            made = self.ask("restore", archive, doom=self.doom() if number < 4 else None)
            if hasattr(made, "missing"):
                break
            if getattr(made, "code", "") == "retired":
                self.site.seen["files with retired names"] += 1
                self.rebuild()
                return
            self._finish_drop(self.ask("drop", NAME, False), delete=False)
        assert hasattr(made, "missing"), f"a restore has no end: {made}"
        self.restored, self.clean = True, False
        self._recovered()
        self.site.seen["restores"] += 1
        self.ledger.former |= self.ledger.may
        if made.missing:
            self.site.seen["restores that miss files"] += 1
            self._finish_drop(self.ask("drop", NAME, False), delete=False)
            self.rebuild()
            return
        self.there, self.kept = True, False
        everything = set(self.ledger.may)
        self.ledger.must, self.ledger.may = set(must), set(may)
        self.read("a scan after a restore")
        self.ledger.may = everything | may

    # ---- Checks.

    def read(self, who: str) -> None:
        """Hold what a reader sees against the ledger."""
        found = self.ask("scan", NAME)
        assert isinstance(found, list), f"{who}: {found!r}"
        self.ledger.check(who, found)
        self.site.seen["readings"] += 1

    # ---- The story.

    def live(self) -> None:
        """Live through some steps, and come to rest."""
        self.create()
        for _ in range(STEPS):
            self.step()
            self.site.pass_time(self.dice.choice((0.1, 0.5, 2.0, 8.0, 70.0)))
        self.come_to_rest()

    def step(self) -> None:
        """Do one thing."""
        dice = self.dice
        if not self.there:
            if not self.kept:
                self.create()
            elif self.archives and dice.random() < 0.3:
                self.restore()
            elif dice.random() < 0.15:
                self.ledger.former |= self.ledger.may
                self.ledger.must, self.ledger.may = set(), set()
                self.restored = True
                self.create()
            else:
                self.rebuild()
            return
        steps: dict[Callable[[], None], int] = {
            self.write: 10,
            self.compact: 4,
            partial(self.rounds, doom=self.doom()): 4,
            self.repeat: 2,
            self.back_up: 1,
            partial(self.read, "a scan"): 1,
            partial(self.drop, delete=False): 3,
            partial(self.drop, delete=True): 2,
            self.lose_store: 2,
        }
        (chosen,) = dice.choices([*steps], [*steps.values()])
        chosen()

    def come_to_rest(self) -> None:
        """Let ghosts do what they can, and look at everything."""
        self.breaks = self.site.ghost_share = 0.0
        if not self.there:
            self.rebuild() if self.kept else self.create()
        if self.dice.random() < 0.5:
            self.repeat()
        self.rounds(3)
        self.site.pass_time(RETIRED_S)
        self.rounds(2)
        self.read("a scan at rest")
        report = self.ask("fsck", NAME, RepairOptions(deep=True))
        damage = [finding for finding in report.checked.findings if finding.code not in LEFT]
        assert not damage, f"a check at rest finds {damage}"


def live_by(seed: int) -> Story:
    """Return a story that has come to rest.

    Raises:
        AssertionError: A promise was broken.
    """
    with tempfile.TemporaryDirectory(prefix="neve-recovery-") as folder:
        story = Story(seed, Path(folder))
        settings: Sequence[Setting] = (
            (live_files, "COMMIT_DELAY_MAX_S", ON_ITS_WAY_S),
            (add, "WRITTEN_MAX_S", ON_ITS_WAY_S / 2),
            (garbage_collector, "LOOK_LASTS_S", 3.0),
            (os, "fsync", lambda _file: None),
            (locations, "_filesystem", partial(_opened, SiteDisk(story.site))),
        )
        with as_simulated(draw_options(0)), set_to(settings):
            try:
                story.live()
            except Exception as error:
                message = f"seed {seed}: {type(error).__name__}: {error}\n{story.world.story()}"
                raise AssertionError(message) from error
            finally:
                story.world.end()
    return story


def _opened(disk: SiteDisk, uri: str) -> tuple[SiteDisk, str]:
    return disk, fs.FileSystem.from_uri(uri)[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], live_by))  # type: ignore[arg-type]  # a story has what is asked of it
