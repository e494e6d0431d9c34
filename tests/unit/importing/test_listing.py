"""What a directory holds: named, sized, or told why it cannot be in a table."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RefusedError, RequestError
from common.parquet.location import Location, open_location
from neve import import_survey
from neve.import_survey import (
    FooterFacts,
    FoundFile,
    check_import_location,
    list_directory,
    read_import_footer,
)

ROWS = pa.table({"id": [1, 2], "v": [1, None], "s": ["a", "b"], "n": pa.nulls(2, pa.int64())})


def place(folder: Path) -> Location:
    return open_location("file://" + quote(str(folder)))


def test_files_are_listed_and_oddities_told(tmp_path: Path) -> None:
    for path in (
        "b.parquet",
        "m=1/a.parquet",
        "m=1/_SUCCESS",
        ".hidden/x",
        "_tmp/y",
        "_neve/store",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("12345")
    (tmp_path / "_m=2").mkdir()
    (tmp_path / "_m=2/c").write_text("1")
    (tmp_path / "back\\slash").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "b.parquet")
    (tmp_path / "out").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"caf\xe9.parquet")).write_text("1")

    found = list_directory(place(tmp_path))

    assert found.files == [
        FoundFile("_m=2/c", 1),
        FoundFile("b.parquet", 5),
        FoundFile("m=1/a.parquet", 5),
    ]
    assert found.ignored == 3
    assert {path: why.split(";")[0] for path, why in found.misfits.items()} == {
        "back\\slash": "its name has empty parts, '..', a backslash or a zero byte",
        "caf\\udce9.parquet": "its name is not UTF-8",
        "link": "it is a link, and links are not followed",
        "out": "it is a link, and links are not followed",
        "pipe": "it is neither a file nor a folder",
    }


def test_another_tables_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a/b/_neve").mkdir(parents=True)
    (tmp_path / "a/b/_neve/store").write_text("store-1\n")
    with pytest.raises(RefusedError, match=r"folder a/b of .* is a table of its own"):
        list_directory(place(tmp_path))
    (tmp_path / "a/b/c").mkdir()
    with pytest.raises(RefusedError, match=r"lies in .*a/b, which belongs to the store store-1"):
        check_import_location(place(tmp_path / "a/b/c"), "store-1")
    with pytest.raises(RefusedError, match="belongs to the store store-1, this one is store-2"):
        check_import_location(place(tmp_path / "a/b"), "store-2")
    check_import_location(place(tmp_path / "a/b"), "store-1")


def test_a_place_is_a_directory_and_reached_without_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_import_location(place(tmp_path / "real"), "s")
    with pytest.raises(RequestError, match=r"goes through a link; give the place itself: .*/real"):
        check_import_location(place(tmp_path / "link"), "s")
    with pytest.raises(RequestError, match="is no directory"):
        check_import_location(place(tmp_path / "none"), "s")


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_survey, "FILES_MAX", 2)
    for name in "abc":
        (tmp_path / name).write_text("1")
    with pytest.raises(RequestError, match="holds more than 2 files"):
        list_directory(place(tmp_path))


class TestFooters:
    def said(self, folder: Path, name: str = "a") -> FooterFacts | str:
        size_bytes = (folder / name).stat().st_size
        return read_import_footer(
            place(folder), FoundFile(name, size_bytes), ["v", "s", "n", "none"]
        )

    def test_a_footer_gives_rows_schema_and_bounds(self, tmp_path: Path) -> None:
        pq.write_table(ROWS, tmp_path / "a", row_group_size=1)
        said = self.said(tmp_path)
        assert isinstance(said, FooterFacts)
        assert (said.rows, said.schema) == (2, ROWS.schema)
        told = {name: (each.nulls, each.low, each.high) for name, each in said.columns.items()}
        assert told == {"v": (1, 1, 1), "s": (0, "a", "b"), "n": (2, None, None)}

    def test_a_file_without_statistics_does_not_tell(self, tmp_path: Path) -> None:
        pq.write_table(ROWS, tmp_path / "a", write_statistics=False)
        said = self.said(tmp_path)
        assert isinstance(said, FooterFacts)
        assert said.columns["v"].nulls is None

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"", "it is empty (0 bytes)"),
            (b"a,b\n1,2\n", "it is not Parquet"),
            (b"PAR1", "file a is not readable as Parquet"),
            (b"PAR1 and more PARE", "it is encrypted: the service has no key for it"),
        ],
    )
    def test_a_file_that_is_not_parquet_says_why(
        self, tmp_path: Path, content: bytes, why: str
    ) -> None:
        (tmp_path / "a").write_bytes(content)
        assert why in str(self.said(tmp_path))

    def test_a_damaged_footer_says_so(self, tmp_path: Path) -> None:
        pq.write_table(ROWS, tmp_path / "a")
        content = bytearray((tmp_path / "a").read_bytes())
        content[-60:-20] = bytes(40)
        (tmp_path / "a").write_bytes(content)
        assert isinstance(self.said(tmp_path), str)
