"""Selectors that go by summaries which writers have left in the footers of their files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import CompactionError, RequestError
from common.model.file import DataFile
from common.model.request import Request, SelectorSpec
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.file_inspection import SUMMARY_BYTES_MAX
from common.spi.planner import Chosen, SelectorParameters
from coordinator.requests import SelectorCalls
from neve.gateway.requests import dry_run
from tests.support.request_shell import TABLE
from tests.unit.neve.test_gateway_pins import Stage, story

pytestmark = pytest.mark.unit

TABLET = TabletId(TABLE.id, PLUS_INFINITY)


class ByDuplicates:
    """Chooses files whose writer counted at least `most` duplicates."""

    def check(self, options: Mapping[str, str]) -> None:
        if not options.get("most", "").isdecimal():
            raise RequestError(f"option most is {options.get('most')!r}, expected a number")

    def summary_names(self, options: Mapping[str, str]) -> Sequence[str]:
        return ["duplicates"]

    def select(self, parameters: SelectorParameters) -> Chosen:
        most, known = int(parameters.options["most"]), parameters.summaries
        assert known.keys() == {file.path for file in parameters.files}
        assert all(each.keys() <= {"duplicates"} for each in known.values())
        chosen = [path for path, each in known.items() if int(each.get("duplicates", 0)) >= most]
        return Chosen(files=tuple(chosen), reason=f"{most} duplicates or more")


def write(folder: Path, name: str, **entries: str | bytes) -> DataFile:
    """Write a file whose footer has these entries."""
    rows = pa.table({"x": [1]}).replace_schema_metadata({**entries, "other": "not asked for"})
    pq.write_table(rows, folder / name)
    return DataFile(path=name, size_bytes=(folder / name).stat().st_size, rows=1)


def chosen(folder: Path, *files: DataFile, most: str = "5") -> tuple[str, ...]:
    """Return what the selector takes."""
    calls = SelectorCalls(load=lambda _name: ByDuplicates())
    spec = SelectorSpec(name="by-duplicates", options={"most": most})
    table = replace(TABLE, location=folder.as_uri())
    return asyncio.run(calls.choose(spec, table, TABLET, files, 0.0)).files


def test_a_selector_goes_by_what_footers_say(tmp_path: Path) -> None:
    files = [
        write(tmp_path, "few", duplicates="4"),
        write(tmp_path, "many", duplicates="5"),
        write(tmp_path, "unknown"),
    ]
    assert chosen(tmp_path, *files) == ("many",)
    assert chosen(tmp_path, *files, most="0") == ("few", "many", "unknown")


def test_more_files_than_are_read_at_once(tmp_path: Path) -> None:
    files = [write(tmp_path, f"{n:03}", duplicates=str(n)) for n in range(130)]
    assert chosen(tmp_path, *files, most="128") == ("128", "129")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("9" * (SUMMARY_BYTES_MAX + 1), "has 65537 bytes, expected at most 65536"),
        (b"\xff\xfe", "its footer's 'duplicates' is not UTF-8 text"),
    ],
)
def test_a_summary_that_is_none_fails_the_choice_and_names_the_file(
    tmp_path: Path, entry: str | bytes, says: str
) -> None:
    file = write(tmp_path, "odd", duplicates=entry)
    with pytest.raises(CompactionError, match=f"file odd: .*{says}"):
        chosen(tmp_path, file)


def test_a_damaged_file_fails_the_choice_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(CompactionError, match="file bad"):
        chosen(tmp_path, DataFile(path="bad", size_bytes=17, rows=1))


def test_a_dry_run_reads_the_same_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neve.gateway.requests.load_request_selector", lambda _spec: ByDuplicates())

    async def tell(stage: Stage) -> None:
        def asked(most: str) -> Request:
            spec = SelectorSpec(name="by-duplicates", options={"most": most})
            return Request(id="r1", table="t1", selector=spec)

        assert (await dry_run(stage.services, stage.table, asked("0"))).files == 3
        assert (await dry_run(stage.services, stage.table, asked("1"))).files == 0

    story(tmp_path, tell)
