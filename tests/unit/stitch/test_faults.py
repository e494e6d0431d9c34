"""Whatever goes wrong: an error that says it, inputs as they were, no output."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import (
    CompactionError,
    InputError,
    RewriteError,
    UnavailableError,
    VerificationError,
)
from common.parquet.location import Location, open_location
from compactor.rewrite.parquet_bytes import stitch as targets
from compactor.rewrite.parquet_bytes.relocation import StitchedFile, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch

STEP = 1 << 14


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    """Return a location with two files of some steps each."""
    monkeypatch.setattr(targets, "LOCAL_STEP_BYTES", STEP)
    chance = np.random.default_rng(1)
    for name in "ab":
        rows = pa.table({"k": np.arange(8000), "x": chance.random(8000)})
        options = {"row_group_size": 4000, "write_page_index": True, "compression": "none"}
        pq.write_table(rows, tmp_path / f"{name}.parquet", **options)
    return open_location(tmp_path.as_uri())


def join(location: Location, on_copied: Callable[[int], None] = lambda _: None) -> StitchedFile:
    pieces = [StitchPiece("a.parquet"), StitchPiece("b.parquet")]
    return stitch(location, pieces, "out/s.parquet", on_copied=on_copied)


@contextmanager
def nothing_is_left(
    location: Location, error: type[CompactionError], match: str, *, changed: bool = False
) -> Iterator[None]:
    """Expect an error, no output and, unless they were changed by us, the inputs as they were."""
    root = Path(location.root)
    before = {path.name: path.read_bytes() for path in root.glob("*.parquet")}
    with pytest.raises(error, match=match):
        yield
    assert not (root / "out" / "s.parquet").exists()
    if not changed:
        assert {path.name: path.read_bytes() for path in root.glob("*.parquet")} == before


def opened_in(location: Location) -> list[str]:
    """Return the files of a location that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(location.root)]


@contextmanager
def room_of(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.9, 0.99, 0.9999])
def test_a_disk_that_is_full_at_any_write(location: Location, share: float) -> None:
    whole = join(location).size_bytes
    os.remove(location.full("out/s.parquet"))
    message = r"output out/s\.parquet cannot be written: .*too large"
    with nothing_is_left(location, RewriteError, message), room_of(int(whole * share)):
        join(location)
    assert join(location).size_bytes == whole


def test_a_system_that_does_not_copy(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = join(location)
    os.remove(location.full("out/s.parquet"))

    def not_here(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", not_here)
    assert join(location) == whole
    monkeypatch.delattr(os, "copy_file_range")
    os.remove(location.full("out/s.parquet"))
    assert join(location) == whole


def test_a_system_that_copies_little_at_a_time(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = join(location)
    os.remove(location.full("out/s.parquet"))
    real = os.copy_file_range

    def little(source: int, sink: int, count: int, at: int, to: int) -> int:
        return real(source, sink, min(count, 1000), at, to)

    monkeypatch.setattr(os, "copy_file_range", little)
    assert join(location) == whole


def test_a_disk_that_lies(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.copy_file_range

    def wrong(source: int, sink: int, count: int, at: int, to: int) -> int:
        copied = real(source, sink, count, at, to)
        os.pwrite(sink, b"?", to + copied // 2)
        return copied

    monkeypatch.setattr(os, "copy_file_range", wrong)
    for behind_max in (targets._BEHIND_MAX, 1):
        monkeypatch.setattr(targets, "_BEHIND_MAX", behind_max)
        message = "differs from its source from byte"
        with nothing_is_left(location, VerificationError, message):
            join(location)
    assert not opened_in(location)


def test_a_source_that_cannot_be_read_a_second_time(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", gone)
    message = r"output out/s\.parquet cannot be compared with its source from byte \d+ on: .*5"
    with nothing_is_left(location, UnavailableError, message):
        join(location)
    assert not opened_in(location)


@pytest.mark.parametrize("kept_bytes", [0, 4, STEP // 2, 3 * STEP])
def test_a_source_that_is_cut_off_meanwhile(location: Location, kept_bytes: int) -> None:
    def cut(_: int) -> None:
        os.truncate(location.full("a.parquet"), kept_bytes)

    message = r"file a\.parquet cannot be read: (ends at byte|changed while)"
    with nothing_is_left(location, InputError, message, changed=True):
        join(location, cut)


@pytest.mark.parametrize(("name", "copied_before"), [("a.parquet", 0), ("b.parquet", 1)])
def test_a_source_that_is_written_anew_meanwhile(
    location: Location, name: str, copied_before: int
) -> None:
    rest = copied_before * os.path.getsize(location.full("a.parquet"))

    def change(size_bytes: int) -> None:
        nonlocal rest
        rest -= size_bytes
        if rest > 0:
            return
        with open(location.full(name), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size - 100)
            file.write(b"\0")

    message = rf"file {name} cannot be read: changed while it was copied: it has another footer"
    with nothing_is_left(location, InputError, message, changed=True):
        join(location, change)


def test_a_source_that_grows_meanwhile(location: Location) -> None:
    def grow(_: int) -> None:
        with open(location.full("a.parquet"), "ab") as file:
            file.write(b"PAR1")

    with nothing_is_left(
        location, InputError, r"file a\.parquet cannot be read: changed", changed=True
    ):
        join(location, grow)


def test_an_error_of_the_progress_callback_ends_the_stitch(location: Location) -> None:
    def stop(_: int) -> None:
        raise VerificationError("enough")

    with nothing_is_left(location, VerificationError, "enough"):
        join(location, stop)


def test_a_target_that_cannot_be_written_fails_the_stitch(location: Location) -> None:
    (Path(location.root) / "out").write_text("a file where a folder should be")
    with pytest.raises(RewriteError, match=r"output out/s\.parquet cannot be written"):
        join(location)
