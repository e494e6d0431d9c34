"""What is no plain file is told of at once: to open a pipe would take for ever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import RequestError, UnavailableError
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location, open_location
from common.parquet.service_files import OWNER_PATH, read_owner, read_small, write_small
from tests.support.patience import PATIENCE_S

PIPE = "pipe.parquet"


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    """A location with pipes where files should be."""
    (tmp_path / "_neve").mkdir()
    for pipe in (PIPE, OWNER_PATH):
        os.mkfifo(tmp_path / pipe)
    yield open_location(tmp_path.as_uri())
    let_go(tmp_path)


def let_go(folder: Path) -> None:
    """End the wait of whoever has opened a pipe."""
    for pipe in (PIPE, OWNER_PATH):
        os.close(os.open(folder / pipe, os.O_RDWR | os.O_NONBLOCK))


@pytest.mark.parametrize(
    ("error", "work"),
    [
        (UnavailableError, read_owner),
        (UnavailableError, lambda location: read_small(location, PIPE, 100)),
        (RequestError, lambda location: open_table_file(location, PIPE).__enter__()),
    ],
    ids=["owner", "small file", "footer"],
)
def test_a_pipe_is_not_waited_for(
    location: Location, error: type[Exception], work: Callable[[Location], object]
) -> None:
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(work, location)
        try:
            with pytest.raises(error, match="not a file"):
                done.result(PATIENCE_S)
        finally:
            let_go(Path(location.root))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(RequestError, match="not a file"),
        open_table_file(open_location(tmp_path.as_uri()), "folder"),
    ):
        pass


def test_a_small_file_that_many_write_at_once_is_whole(tmp_path: Path) -> None:
    """The first writers of a location all put its guards in place."""
    location, contents = open_location(tmp_path.as_uri()), [b"%d" % at * 4096 for at in range(8)]

    def write(content: bytes) -> None:
        for _ in range(50):
            write_small(location, "_neve/small", content)

    with ThreadPoolExecutor(len(contents)) as threads:
        for done in [threads.submit(write, content) for content in contents]:
            done.result(PATIENCE_S)

    assert read_small(location, "_neve/small", 1 << 20) in contents
    assert [path.name for path in (tmp_path / "_neve").iterdir()] == ["small"]
