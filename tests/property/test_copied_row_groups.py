"""Row groups that meet no others are copied, and the rest is merged as ever."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.request import Request, TransformKind, TransformSpec
from compactor.rewrite.merge import driver
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.verify import verify
from tests.property.test_merge_kernel import (
    here,
    simple_plan,
)
from tests.property.test_rows_merge import (
    NOW_S,
)
from tests.support.tables_on_disk import (
    assignment_over,
    keyed_table,
    write_file,
)


class TestRowGroupsThatMeetNoOthers:
    """Such row groups are copied, unless their file is not what its entry says."""

    def run(self, plan: RewritePlan, monkeypatch: pytest.MonkeyPatch) -> tuple[TaskResult, int]:
        """Merge; return the result and how many calls looked at copies."""
        monkeypatch.setattr(driver, "RUN_BYTES_MIN", 0)
        monkeypatch.setattr(driver, "worth_copying", lambda *_: True)
        looked: list[Any] = []

        def run_tasks(calls: Sequence[Any]) -> list[Any]:
            looked.extend(call for call in calls if call.func is driver.check_copy)
            return here(calls)

        result = merge_large_job(plan, run_tasks, 2)
        verify(plan, result, lambda: False)
        return result, len(looked)

    def rows(self, start: int, stop: int, version: int = 1) -> pa.Table:
        keys = list(range(start, stop))
        return pa.table({"k": keys, "v": [version] * len(keys)})

    def test_only_what_overlaps_is_merged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parts = self.rows(0, 100), self.rows(100, 200), self.rows(50, 60, 2)
        plan = simple_plan(tmp_path, *parts, row_group_size=10, compression="zstd")
        result, looked = self.run(plan, monkeypatch)
        assert looked == 2
        assert (result.counts.rows_out, result.counts.superseded) == (200, 10)
        read = pq.read_table(tmp_path / "table" / result.files[0].path)
        assert read.column("k").to_pylist() == list(range(200))
        assert read.column("v").to_pylist() == [2 if 50 <= n < 60 else 1 for n in range(200)]

    def test_files_with_a_key_twice_are_merged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        twice = pa.concat_tables([self.rows(0, 20), self.rows(19, 20, 2)])
        plan = simple_plan(
            tmp_path, twice, self.rows(100, 130), row_group_size=30, compression="zstd"
        )
        result, looked = self.run(plan, monkeypatch)
        assert looked == 1
        assert (result.counts.rows_out, result.counts.superseded) == (50, 1)

    @pytest.mark.parametrize(("at", "end", "key"), [(0, "high", 14), (1, "low", 20)])
    def test_a_footer_that_hides_an_overlap_is_found_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, end: str, key: int
    ) -> None:
        parts = self.rows(0, 20), self.rows(15, 40, 2)
        plan = simple_plan(tmp_path, *parts, row_group_size=30, compression="zstd")
        groups = list(plan.inputs.row_groups)
        groups[at] = replace(groups[at], **{end: encode_value(key, KeyType.INT)})
        result, looked = self.run(
            replace(plan, inputs=replace(plan.inputs, row_groups=tuple(groups))), monkeypatch
        )
        assert looked == 1
        assert (result.counts.rows_out, result.counts.superseded) == (40, 5)

    def test_a_copy_is_as_wide_as_its_keys_and_as_old_as_its_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        versions = pa.table({"k": list(range(40)), "v": list(range(40))})
        plan = simple_plan(
            tmp_path, versions, self.rows(0, 10, 99), row_group_size=10, compression="zstd"
        )
        result, looked = self.run(plan, monkeypatch)
        assert looked == 1
        (facts,) = result.facts or ()
        wanted = [encode_value(at, KeyType.INT) for at in (0, 39, 0, 99)]
        assert [facts.key_min, facts.key_max, facts.version_min, facts.version_max] == wanted
        assert (facts.rows, facts.clean) == (40, True)

    def test_cuts_divide_copied_row_groups_among_outputs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = simple_plan(tmp_path, self.rows(0, 40), row_group_size=10, compression="zstd")
        cuts = tuple(encode_value(at, KeyType.INT) for at in (19, 33))
        paths = tuple(f"_neve/last/{at}.parquet" for at in range(3))
        cut = replace(plan, output=replace(plan.output, cuts=cuts, paths=paths))
        result, _ = self.run(cut, monkeypatch)
        assert [file.rows for file in result.files] == [20, 14, 6]

    @pytest.mark.parametrize(
        ("text", "copied"),
        [
            ("x > 75", [0, 1, 2, 4, 5, 6]),
            ("x is null", [0, 1, 2, 4, 5, 6, 7, 8, 9]),
            ("name = 'f'", [0, 1, 2, 4, 6, 7, 8, 9]),
            ("at < now() - interval 40 seconds", [6, 7, 8, 9]),
            ("d > 100", []),
        ],
    )
    def test_row_groups_without_a_row_to_delete_are_copied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, copied: list[int]
    ) -> None:
        """Row group 3 meets another file; bounds of floats do not exclude NaN."""
        assert self.copied_groups(tmp_path, monkeypatch, text) == copied

    def test_row_groups_that_may_have_a_row_to_delete_are_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A null is in no bounds, and missing bounds exclude nothing."""
        rows = self.rows_to_delete()
        at = rows.schema.get_field_index("x")
        values = [None if key == 55 else key for key in range(100)]
        rows = rows.set_column(at, "x", pa.array(values, pa.int64()))
        copied = self.copied_groups(tmp_path, monkeypatch, "x is null", rows)
        assert copied == [0, 1, 2, 4, 6, 7, 8, 9]
        for name in ("progress", "table"):
            shutil.rmtree(tmp_path / name)
        keys = {"write_statistics": ["k", "v", "dead"]}
        assert self.copied_groups(tmp_path, monkeypatch, "x > 75", **keys) == []

    def rows_to_delete(self) -> pa.Table:
        keys = list(range(100))
        at = pa.array([int(NOW_S - 100 + key) * 10**6 for key in keys], pa.timestamp("us"))
        names = [chr(ord("a") + key // 10) for key in keys]
        fixed = {"v": [1] * 100, "dead": [False] * 100}
        columns = {"x": keys, "d": [float(key) for key in keys], "name": names, "at": at}
        return pa.table({"k": keys, **fixed, **columns})

    def copied_groups(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        text: str,
        rows: pa.Table | None = None,
        **options: Any,
    ) -> list[int]:
        """Return the row groups that a deletion copies; row group 3 meets another file."""
        (tmp_path / "progress").mkdir()
        rows = self.rows_to_delete() if rows is None else rows
        table = keyed_table(tmp_path / "table", rows.schema, key=("k",), time_column=None)
        for path, part in (("a", rows), ("b", rows.slice(35, 1))):
            more = {"row_group_size": 10, "compression": "zstd"} | options
            write_file(tmp_path / "table", path, part, **more)
        spec = TransformSpec(kind=TransformKind.DELETE_WHERE, text=text)
        request = Request(id="request-1", table="table-1", transform=spec)
        assignment = assignment_over(table, ["a", "b"], request=request, now_s=NOW_S)
        plan = make_plan(assignment, str(tmp_path / "progress"))
        seen: list[int] = []
        checked = driver.check_copy

        def check_copy(plan: RewritePlan, copy: Any) -> Any:
            seen.extend(group.number for group in copy.groups)
            return checked(plan, copy)

        monkeypatch.setattr(driver, "RUN_BYTES_MIN", 0)
        monkeypatch.setattr(driver, "worth_copying", lambda *_: True)
        with monkeypatch.context() as patched:
            patched.setattr(driver, "check_copy", check_copy)
            result = merge_large_job(plan, lambda calls: [call() for call in calls], 4)
        verify(plan, result, lambda: False)
        assert result.counts.rows_out == 100
        return sorted(seen)

    def test_another_codec_is_written_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = simple_plan(tmp_path, self.rows(0, 40), self.rows(50, 90), compression="snappy")
        result, looked = self.run(plan, monkeypatch)
        assert (looked, result.counts.rows_out) == (0, 80)
