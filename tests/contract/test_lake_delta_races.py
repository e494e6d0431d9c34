"""Races of a compaction with other writers of a Delta table, on a disk and in S3.

The rows are those of the table in `docs/lake-tables.md`. Each race ends with a check row by row by
three independent readers: deltalake's engine, Polars and DuckDB.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.errors import RefusedError
from common.lake import rules
from common.lake.open import open_source
from common.lake.source import Answer, Snapshot, TableSource
from tests.support.delta_tables import WITH_VECTORS, DeltaTable
from tests.support.independent_reader import independent_reader
from tests.support.race_attempt import LakeAttempt
from tests.support.s3_server import S3Server, s3_server

ATTEMPT = "0123456789abcdef"
EVERYWHERE = pytest.mark.parametrize(
    "race", ["disk", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
"""For what depends on the storage; the others meet S3 in `make long` alone."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        server.create_bucket("lakes")
        yield server


def options_of(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ENDPOINT": server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
    }


class Race:
    """A table of four files with 10 rows each, and an attempt on three of them.

    Output 0 has the rows of two files, output 1 those of the third; the fourth file stays.
    """

    def __init__(self, writer: DeltaTable) -> None:
        self.writer = writer
        for first in range(0, 40, 10):
            self.append(first)
        self.source: TableSource = open_source("delta", writer.uri, writer.options)
        self.attempt = LakeAttempt(ATTEMPT, self.source, writer)
        self.gone: set[int] = set()
        self.head: Snapshot = self.source.load()
        self.paths = sorted(self.head.files, key=lambda path: self.head.files[path].bounds)

    def append(self, first: int) -> None:
        table = pa.table({"a": range(first, first + 10), "p": ["x"] * 10})
        self.writer.append_by_deltalake(table, ["p"], WITH_VECTORS)

    def delete(self, number: int, positions: Iterable[int], storage: str = "u") -> None:
        """Delete rows of a file by a vector; `positions` are all deleted ones."""
        self.writer.delete_by_vector(self.paths[number], positions, storage)
        self.gone |= {number * 10 + position for position in positions}

    def plan(self) -> rules.Publishing:
        self.head = self.source.load()
        return self.attempt.rewrite(self.head, [self.paths[:2], self.paths[2:3]])

    def publish(self, state: rules.Publishing) -> rules.EndPublishing:
        return self.attempt.publish(state)

    def between(self, kind: type[rules.PublishStep], act: Callable[[], Any], nth: int = 1) -> None:
        """Let another writer in before the nth step of a kind."""

        def act_once(step: rules.PublishStep) -> None:
            steps = [other for other in self.attempt.steps if isinstance(other, kind)]
            if isinstance(step, kind) and len(steps) == nth:
                act()

        self.attempt.between = act_once

    def require_rows(self, appended: int = 4) -> None:
        """Check that each reader sees exactly the rows that are not deleted."""
        expected = Counter((value,) for value in range(appended * 10) if value not in self.gone)
        assert self.writer.deltalake_rows("a") == expected
        assert self.writer.polars_rows("a") == expected
        uri, options = self.writer.uri, self.writer.options
        assert independent_reader().delta_rows(uri, "a", options=options) == expected
        assert {path.partition("=")[0] for path in self.source.load().files} == {"p"}

    def live(self) -> set[str]:
        """Return which inputs and outputs are live, by number."""
        live = self.source.load().files
        names = {path: f"input {number}" for number, path in enumerate(self.paths)}
        names |= {f"p=x/part-{ATTEMPT}-{number}.parquet": f"output {number}" for number in (0, 1)}
        return {names[path] for path in live if path in names}


@pytest.fixture(params=["disk", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.long])])
def race(request: pytest.FixtureRequest, tmp_path: Path) -> Race:
    if request.param == "disk":
        return Race(DeltaTable(tmp_path / "t"))
    server: S3Server = request.getfixturevalue("server")
    return Race(DeltaTable(f"s3://lakes/{uuid.uuid4().hex}", options_of(server)))


@EVERYWHERE
def test_without_others_all_outputs_commit(race: Race) -> None:
    race.source.require_conditions("trial")
    end = race.publish(race.plan())

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 4)
    assert len(end.committed) == 2
    assert race.live() == {"output 0", "output 1", "input 3"}
    info = race.writer.entries(4)[0]["commitInfo"]
    assert (info["operation"], info["neveAttempt"]) == ("OPTIMIZE", ATTEMPT)
    assert {
        entry["dataChange"] for line in race.writer.entries(4)[1:] for entry in line.values()
    } == {False}
    race.require_rows()


def test_an_unrelated_append_is_kept(race: Race) -> None:
    state = race.plan()
    race.append(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"output 0", "output 1", "input 3"}
    race.require_rows(appended=5)


@EVERYWHERE
def test_an_append_between_load_and_send_costs_one_more_try(race: Race) -> None:
    state = race.plan()
    race.between(rules.SendVersion, lambda: race.append(40))
    end = race.publish(state)

    kinds = [type(step).__name__ for step in race.attempt.steps]
    tries = ["LoadHead", "MarkReservation", "SendVersion", "LoadHead", "LookForAttempt"]
    assert kinds == [*tries, "MarkReservation", "SendVersion", "LookForAttempt"]
    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 5)
    race.require_rows(appended=5)


@pytest.mark.parametrize("storage", ["u", "i", "p"])
@pytest.mark.parametrize("then_append", [False, True], ids=["", "then an append"])
def test_later_deletes_are_carried_over(race: Race, storage: str, then_append: bool) -> None:
    race.delete(1, [2, 3])
    state = race.plan()
    race.delete(1, [2, 3, 0, 9], storage)
    race.delete(2, [5])
    if then_append:
        race.append(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"output 0", "output 1", "input 3"}
    files = race.source.load().files
    rows = {
        path.rpartition("-")[2]: race.source.positions(file).tolist()
        for path, file in files.items()
        if ATTEMPT in path
    }
    assert rows == {"0.parquet": [10, 17], "1.parquet": [5]}
    race.require_rows(appended=5 if then_append else 4)


def test_deletes_between_load_and_send_are_carried_over(race: Race) -> None:
    state = race.plan()
    race.between(rules.SendVersion, lambda: race.delete(0, [4]))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"output 0", "output 1", "input 3"}
    race.require_rows()


def test_rows_deleted_by_a_copy_drop_only_that_output(race: Race) -> None:
    state = race.plan()
    race.writer.table.delete("a = 25")
    race.gone.add(25)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert end.committed == {f"p=x/part-{ATTEMPT}-0.parquet"}
    assert race.live() == {"output 0", "input 3"}
    race.require_rows()


def test_another_compaction_of_the_files_refuses_the_attempt(race: Race) -> None:
    state = race.plan()
    adds = race.writer.live()
    other = LakeAttempt("fedcba98", race.source, race.writer)
    other.publish(other.rewrite(race.source.load(), [race.paths]))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert end.reason.endswith("left the table")
    assert not end.was_sent
    assert len(adds) == 4
    assert race.live() == set()
    race.require_rows()


def test_a_compaction_of_deltalake_refuses_the_attempt(tmp_path: Path) -> None:
    race = Race(DeltaTable(tmp_path / "t"))
    state = race.plan()
    metrics = race.writer.table.optimize.compact()
    end = race.publish(state)

    assert metrics["numFilesRemoved"] == 4
    assert end.ending is rules.PublishEnd.REFUSED
    race.require_rows()


def test_files_with_deletion_vectors_are_replaced(race: Race) -> None:
    race.delete(0, [1, 2])
    race.delete(2, range(10), "i")
    race.plan()
    end = race.publish(race.plan())

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"output 0", "input 3"}
    removes = [line["remove"] for line in race.writer.entries(end.version) if "remove" in line]
    assert sum("deletionVector" in remove for remove in removes) == 2
    race.require_rows()


@pytest.mark.parametrize("heard", [Answer.UNKNOWN, Answer.CONFLICT])
def test_a_lost_or_false_answer_makes_no_second_commit(race: Race, heard: Answer) -> None:
    race.attempt.answers = lambda _answer: heard
    state = race.plan()
    end = race.publish(state)

    assert (end.ending, end.version, len(end.committed)) == (rules.PublishEnd.COMMITTED, 4, 2)
    assert race.source.load().version == 4
    race.require_rows()


@EVERYWHERE
def test_a_false_commit_is_tried_again(race: Race) -> None:
    state = race.plan()
    heard = iter([Answer.COMMITTED])
    race.attempt.answers = lambda answer: next(heard, answer)
    race.between(rules.SendVersion, lambda: race.append(40))
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 5)
    race.require_rows(appended=5)


def test_rows_that_a_restore_brought_back_drop_the_output(race: Race) -> None:
    race.delete(1, [2, 3])
    state = race.plan()
    race.writer.table.restore(3)
    race.gone.clear()
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"input 0", "input 1", "output 1", "input 3"}
    race.require_rows()


def test_a_restore_below_our_commit_does_not_hide_it(race: Race) -> None:
    race.attempt.answers = lambda _answer: Answer.UNKNOWN
    state = race.plan()
    race.between(rules.LookForAttempt, lambda: race.writer.table.restore(3))
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 4)
    assert race.live() == {"input 0", "input 1", "input 2", "input 3"}
    race.require_rows()


def test_a_change_of_properties_ends_the_attempt(race: Race) -> None:
    state = race.plan()
    race.writer.table.alter.set_table_properties({"delta.appendOnly": "false"})
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert "properties or features may have changed up to version 4" in end.reason
    race.require_rows()


def test_the_released_attempt_sends_nothing(race: Race) -> None:
    race.attempt.is_held = lambda: False
    end = race.publish(race.plan())

    assert (end.ending, end.was_sent) == (rules.PublishEnd.RELEASED, False)
    assert race.source.load().version == 3
    race.require_rows()


def test_other_writers_and_checkpoints_go_on_above_our_version(race: Race) -> None:
    end = race.publish(race.plan())
    race.writer.table.create_checkpoint()
    race.append(40)
    race.writer.table.delete("a < 5")
    race.gone |= set(range(5))

    assert race.source.look(ATTEMPT, end.committed, 3).version == end.version
    race.require_rows(appended=5)
    race.writer.table.optimize.compact()
    race.writer.table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    race.require_rows(appended=5)


def test_a_server_that_ignores_conditions_is_refused(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = race.source._storage  # type: ignore[attr-defined]
    monkeypatch.setattr(type(storage), "create", lambda *_: Answer.COMMITTED)

    with pytest.raises(RefusedError, match="overwrites files although it is asked not to"):
        race.source.require_conditions("trial")
