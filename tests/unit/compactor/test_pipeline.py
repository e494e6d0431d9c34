"""What goes on beside a merge: decoding ahead, encoding behind, small files together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError
from common.parquet.location import open_location
from compactor.rewrite.attempt_folder import Allowance
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.kernel.winners import DecodedRows, RowLayout
from compactor.rewrite.memory_budget import MemoryInUse, ordered_map
from compactor.rewrite.merge.io import (
    AsyncWriter,
    BatchedReader,
    Prefetcher,
    reading_order,
)
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from tests.support.patience import PATIENCE_S
from tests.support.tables_on_disk import assignment_over, keyed_table

ROWS = pa.table({"k": [1]})


def groups(count: int, size_bytes: int = 10) -> list[RowGroup]:
    return [
        RowGroup(input=at, number=0, start=0, rows=1, size_bytes=size_bytes, low=None, high=None)
        for at in range(count)
    ]


class Decoder:
    """Remembers what it was asked for; rows tell their input."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def read(self, group: RowGroup) -> DecodedRows:
        self.asked.append(group.input)
        return DecodedRows(None, None, [], group.input, group.size_bytes)  # type: ignore[arg-type] # no rows


def test_row_groups_come_whatever_the_order_and_no_more_is_ahead_than_fits() -> None:
    decoder, wanted = Decoder(), groups(20)
    with Prefetcher(dict.fromkeys(range(20), decoder), wanted, MemoryInUse(35)) as ahead:
        for position, group in enumerate([*wanted[:5], wanted[17], *wanted[5:17], *wanted[18:]]):
            assert ahead.read(group).rows == group.input
            assert len(decoder.asked) <= position + 1 + 3
    assert sorted(decoder.asked) == list(range(20))


def test_released_row_groups_make_room_for_the_next() -> None:
    decoder, wanted, room = Decoder(), groups(6), MemoryInUse(30)
    with Prefetcher(dict.fromkeys(range(6), decoder), wanted, room) as ahead:
        for group in wanted[:3]:
            ahead.read(group)
        assert room.held_bytes == 30
        assert len(decoder.asked) == 3
        room.held_bytes = 0
        ahead.read(wanted[3])
        for _ in range(1000):
            if len(decoder.asked) == 6:
                break
            threading.Event().wait(0.01)
        assert sorted(decoder.asked) == list(range(6))


def test_row_groups_are_decoded_two_at_a_time() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)

    class Meeting(Decoder):
        def read(self, group: RowGroup) -> DecodedRows:
            both.wait()
            return super().read(group)

    wanted = groups(4)
    with Prefetcher(dict.fromkeys(range(4), Meeting()), wanted, MemoryInUse(100)) as ahead:
        assert [ahead.read(group).rows for group in wanted] == [0, 1, 2, 3]


def test_results_come_in_the_order_of_the_calls_and_so_do_errors() -> None:
    late, seen = threading.Event(), list[int]()

    def first() -> int:
        assert late.wait(10)
        return 0

    def second() -> int:
        late.set()
        return 1

    def damaged() -> int:
        raise InputError("damaged")

    def calls() -> Iterator[Callable[[], int]]:
        for at, call in enumerate((first, second, *(partial(int, at) for at in range(2, 7)))):
            assert len(seen) >= at - 3
            yield call
        yield damaged

    def keep() -> None:
        for result in ordered_map("test", calls()):
            seen.append(result)

    with pytest.raises(InputError, match="damaged"):
        keep()
    assert seen == list(range(7))


def test_without_room_nothing_is_decoded_ahead() -> None:
    decoder, wanted = Decoder(), groups(3)
    with Prefetcher(dict.fromkeys(range(3), decoder), wanted, MemoryInUse(0)) as ahead:
        assert decoder.asked == []
        assert [ahead.read(group).rows for group in wanted] == [0, 1, 2]


def test_an_error_of_decoding_is_raised_where_its_row_group_is_wanted() -> None:
    class Broken(Decoder):
        def read(self, group: RowGroup) -> DecodedRows:
            if group.input == 2:
                raise InputError("damaged")
            return super().read(group)

    wanted = groups(4)
    with Prefetcher(dict.fromkeys(range(4), Broken()), wanted, MemoryInUse(100)) as ahead:
        assert [ahead.read(group).rows for group in wanted[:2]] == [0, 1]
        with pytest.raises(InputError, match="damaged"):
            ahead.read(wanted[2])


def test_the_order_of_reading_is_by_least_key_unknown_ones_first() -> None:
    known = [replace(group, low=bytes([9 - group.input])) for group in groups(3)]
    unknown = replace(groups(5)[4], low=None)
    assert [each.input for each in reading_order([*known, unknown])] == [4, 2, 1, 0]


def test_calls_are_made_in_order_and_their_errors_are_raised() -> None:
    seen: list[int] = []
    with AsyncWriter() as behind:
        for number in range(50):
            behind.submit(lambda _, n: seen.append(n), ROWS, number)
        behind.wait()
        assert seen == list(range(50))

        def fail(_: pa.Table) -> None:
            raise OSError("no space")

        behind.submit(fail, ROWS)
        with pytest.raises(OSError, match="no space"):
            behind.wait()


def test_leaving_with_an_error_waits_for_the_running_call() -> None:
    begun, ended = threading.Event(), threading.Event()

    def slow(_: pa.Table) -> None:
        begun.set()
        threading.Event().wait(0.05)
        ended.set()

    def leave() -> None:
        with AsyncWriter() as behind:
            behind.submit(slow, ROWS)
            begun.wait()
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    assert ended.is_set()


class TestSmallFiles:
    """They are read by one call, if they are what their footers said."""

    def plan(self, folder: Path, count: int = 5) -> RewritePlan:
        paths = [f"{at}.parquet" for at in range(count)]
        for at, path in enumerate(paths):
            self.write(folder / path, at)
        table = keyed_table(
            folder, self.rows(0).schema, key=("k",), tombstone_column=None, time_column=None
        )
        return make_plan(assignment_over(table, paths))

    def rows(self, at: int) -> pa.Table:
        return pa.table({"k": [at, at + 10, at + 20], "v": [at] * 3})

    def write(self, path: Path, at: int) -> None:
        pq.write_table(self.rows(at), path)

    def together(self, plan: RewritePlan, *, by_key: bool = True) -> BatchedReader:
        layout = RowLayout(plan.rules.schema, plan.rules.row_rules)
        location = open_location(plan.location)
        paths = dict(enumerate(plan.inputs.paths))
        return BatchedReader(
            location, paths, layout, plan.inputs.small, Allowance(""), by_key=by_key
        )

    def test_each_row_group_gets_its_own_rows(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path)
        assert sorted(plan.inputs.small) == [0, 1, 2, 3, 4]
        held = self.together(plan).read(plan.inputs.row_groups)
        assert held is not None
        assert [each.frame.get_column("v").to_list() for each in held] == [
            [at] * 3 for at in range(5)
        ]

    @pytest.mark.parametrize("by_key", [True, False])
    def test_row_groups_of_which_no_keys_are_known_become_one(
        self, tmp_path: Path, by_key: bool
    ) -> None:
        plan = self.plan(tmp_path)
        unknown = [replace(group, low=None, high=None) for group in plan.inputs.row_groups]
        held = self.together(plan, by_key=by_key).read(unknown)
        assert held is not None
        assert [each.rows for each in held] == [15, 0, 0, 0, 0]
        keys = held[0].frame.get_column("k").to_list()
        wanted = [at + add for at in range(5) for add in (0, 10, 20)]
        assert keys == (sorted(wanted) if by_key else wanted)
        assert held[0].frame.get_column("v").to_list() == [key % 10 for key in keys]
        assert held[0].size_bytes >= sum(group.size_bytes for group in unknown)

    def test_files_of_other_columns_or_of_several_row_groups_are_not_among_them(
        self, tmp_path: Path
    ) -> None:
        self.write(tmp_path / "0.parquet", 0)
        pq.write_table(self.rows(1), tmp_path / "1.parquet", row_group_size=2)
        pq.write_table(self.rows(2).select(["v", "k"]), tmp_path / "2.parquet")
        table = keyed_table(
            tmp_path, self.rows(0).schema, key=("k",), tombstone_column=None, time_column=None
        )
        paths = [f"{at}.parquet" for at in range(3)]
        plan = make_plan(assignment_over(table, paths))
        assert sorted(plan.inputs.small) == [0]
        together = self.together(plan)
        assert [together.accepts(group) for group in plan.inputs.row_groups] == [
            True,
            False,
            False,
            False,
        ]

    def test_a_batched_read_that_fails_is_left_to_single_reads(self, tmp_path: Path) -> None:
        plan = self.plan(tmp_path)
        (tmp_path / "3.parquet").write_bytes(b"PAR1 not any more")
        assert self.together(plan).read(plan.inputs.row_groups) is None
        pq.write_table(self.rows(3).slice(1), tmp_path / "3.parquet")
        assert self.together(plan).read(plan.inputs.row_groups) is None
