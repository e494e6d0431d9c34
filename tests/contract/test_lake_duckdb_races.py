"""DuckDB writes an Iceberg table over a REST catalog while Névé compacts it.

Its deletes are position deletes. None may be lost, and no row doubled: DuckDB and PyIceberg read
the table back, and are compared with a model of what was acknowledged.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyiceberg.manifest import DataFileContent

from common.lake import rules
from common.lake.source import Snapshot
from tests.support.iceberg_catalogs import CatalogSite, rest_site
from tests.support.iceberg_race import Files, Race
from tests.support.independent_reader import DuckWriter, QueryError
from tests.support.lake_attempts import access_of, assignment_of, rewrite
from tests.support.race_attempt import LakeAttempt

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogSite]:
    with rest_site(tmp_path_factory.mktemp("rest")) as site:
        yield site


class DuckRace(Race):
    """A race with DuckDB, which writes over the same catalog."""

    def __init__(self, site: CatalogSite) -> None:
        super().__init__(site)
        # DuckDB reads the newest snapshot that is not in its future.
        self.attempt.now_s = time.time()
        self.duck = DuckWriter(site.properties["uri"], f"db.{self.name}")

    def delete(self, *ids: int, single: bool = True) -> None:
        """Delete rows by position."""
        wanted = sum(self.rows[row] for row in ids)
        assert self.duck.delete(ids) == wanted
        for row in ids:
            self.rows[row] = 0

    def insert(self, *ids: int) -> None:
        """Insert rows."""
        values = ", ".join(f"({row}, 'x')" for row in ids)
        assert self.duck.run(f"insert into {self.duck.table} values {values}") == len(ids)
        self.rows.update(ids)

    def update(self, old: int, new: int) -> None:
        """Give a row another id: it is deleted by position, and written again."""
        changed = self.duck.run(f"update {self.duck.table} set id = {new} where id = {old}")
        assert changed == self.rows[old]
        self.rows[old] = 0
        self.rows[new] += changed

    def require_rows(self) -> None:
        """Compare the rows that PyIceberg and DuckDB read with those that were acknowledged."""
        super().require_rows()
        expected = +self.rows
        assert self.duck.rows("id") == Counter({(row,): n for row, n in expected.items()})
        contents = {file.content for file in self.live_files()}
        assert contents <= {DataFileContent.DATA, DataFileContent.POSITION_DELETES}


@pytest.fixture
def race(rest: CatalogSite) -> Iterator[DuckRace]:
    race = DuckRace(rest)
    yield race
    race.duck.process.end()


def test_deletes_of_duckdb_before_and_after_the_plan(race: DuckRace) -> None:
    race.delete(12, 13, 33)
    state = race.plan()
    race.delete(10, 19, 25)
    race.insert(40, 41)
    race.delete(11, 40)
    end = race.publish(state)

    assert (end.ending, len(end.committed)) == (rules.PublishEnd.COMMITTED, 2)
    race.require_rows()
    race.delete(14, 24, 41)  # DuckDB goes on above our version.
    race.require_rows()


@pytest.mark.parametrize("step", [rules.LoadHead, rules.MarkReservation, rules.SendVersion])
def test_deletes_of_duckdb_at_each_step(race: DuckRace, step: type[rules.PublishStep]) -> None:
    race.delete(3)
    state = race.plan()
    race.between(step, lambda: race.delete(4, 24))
    end = race.publish(state)

    assert (end.ending, len(end.committed)) == (rules.PublishEnd.COMMITTED, 2)
    race.require_rows()


def test_updates_of_duckdb_while_a_table_is_compacted(race: DuckRace) -> None:
    state = race.plan()
    race.update(5, 105)
    race.between(rules.SendVersion, lambda: race.update(105, 205))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    race.require_rows()


def test_a_delete_of_duckdb_that_began_before_our_commit_is_not_lost(race: DuckRace) -> None:
    """It names files that are gone, so the catalog has to refuse it."""
    state = race.plan()
    ask = race.duck.process.ask
    ask("begin")
    ask(f"delete from {race.duck.table} where id in (4, 24)")
    end = race.publish(state)
    with pytest.raises(QueryError, match="Conflict_409"):
        ask("commit")

    assert end.ending is rules.PublishEnd.COMMITTED
    race.require_rows()
    race.delete(4, 24)
    race.require_rows()


def test_another_row_is_inserted_for_a_deleted_one(race: DuckRace) -> None:
    race.delete(5)
    race.insert(5)
    state = race.plan()
    race.delete(5)
    race.insert(5, 5)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    race.require_rows()
    assert race.rows[5] == 2


def test_a_job_of_the_compactor_keeps_what_duckdb_deletes_meanwhile(
    race: DuckRace, tmp_path: Path
) -> None:
    race.delete(12, 13)
    assignment = assignment_of(race.writer, race.paths[:3])
    made = rewrite(assignment, tmp_path / "attempt", access=access_of(race.writer))
    assert made.counts.tombstones_dropped == 2
    race.delete(10, 25)
    race.update(20, 120)
    files = Files(race.writer, race.source)
    attempt = LakeAttempt("att-1", race.source, files, now_s=time.time())
    end = attempt.publish(rules.Publishing(made.result.planned, made.result.outputs, time.time()))

    assert (end.ending, len(end.committed)) == (rules.PublishEnd.COMMITTED, 1)
    race.require_rows()
    assert set(race.source.load().files).isdisjoint(race.paths[:3])


# ----------------------------------------------------------------------------------- Many at a time


COMPACTIONS_MIN = 3
PAUSE_S = 0.3
"""Between compactions, so that DuckDB is the faster one now and then."""


class Life:
    """DuckDB in one thread, and compactions in another."""

    def __init__(self, race: DuckRace, seed: int, steps: int) -> None:
        self.race, self.steps = race, steps
        self.chance, self.choice = Random(seed), Random(seed + 1)
        self.over = threading.Event()
        self.ends: Counter[rules.PublishEnd] = Counter()
        self.failures: list[BaseException] = []

    def run(self) -> None:
        """Let both work until DuckDB has made its steps."""
        threads = [threading.Thread(target=self._kept(act)) for act in (self.write, self.compact)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.failures, self.failures

    def _kept(self, act: Callable[[], None]) -> Callable[[], None]:
        def kept() -> None:
            try:
                act()
            except BaseException as error:
                self.failures.append(error)
            finally:
                self.over.set()

        return kept

    def write(self) -> None:
        """Delete, insert and update rows; some of it after each of the first compactions."""
        number = 0
        while number < self.steps or self.ends.total() < COMPACTIONS_MIN:
            if number >= self.steps:  # An attempt is due that DuckDB does not overtake each time.
                time.sleep(PAUSE_S * (number - self.steps))
            number += 1
            live = sorted(+self.race.rows)
            match self.chance.randrange(3):
                case 0:
                    self.race.insert(*range(1000 + 10 * number, 1005 + 10 * number))
                case 1:
                    self.race.update(self.chance.choice(live), 5000 + number)
                case _:
                    self.race.delete(*self.chance.sample(live, 2))

    def compact(self) -> None:
        """Rewrite some files of the head, again and again."""
        number = 0
        while not self.over.wait(PAUSE_S):
            number += 1
            source = self.race.opened()
            head: Snapshot = source.load()
            paths = self.choice.sample(sorted(head.files), min(len(head.files), 5))
            name = f"{number:016x}"
            files = Files(self.race.writer, source)
            attempt = LakeAttempt(name, source, files, now_s=time.time())
            state = replace(attempt.rewrite(head, [paths[:3], paths[3:]]), tries_max=100)
            self.ends[attempt.publish(state).ending] += 1


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 10), *(pytest.param(seed, 40, marks=pytest.mark.long) for seed in range(2, 6))],
)
def test_duckdb_writes_and_compactions_commit_all_the_time(
    race: DuckRace, seed: int, steps: int
) -> None:
    life = Life(race, seed, steps)
    life.run()

    # No delete of DuckDB throws a rewrite away.
    assert set(life.ends) == {rules.PublishEnd.COMMITTED}
    race.require_rows()
