"""A schema grows by command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import TOKEN, serving
from tests.support.shell import Shell


@pytest.fixture
def neve(tmp_path: Path) -> Iterator[Shell]:
    with serving() as gateway:
        shell = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
        where = ["--location", str(tmp_path / "events"), "--schema", "id:int32,v:int64"]
        shell.run("table", "create", "events", *where, "--key", "id", "--version", "v")
        yield shell


def test_columns_are_added_and_widened(neve: Shell) -> None:
    words = ["--add-column", "price:double", "--add-column", "at:timestamp[us, tz=UTC]"]
    neve.run("table", "set", "events", "max_files=5", *words, "--widen-column", "id:int64")
    table = neve.json("table", "describe", "events")
    columns = {column["name"]: column["type"] for column in table["schema"]}
    assert columns == {
        "id": "int64",
        "v": "int64",
        "price": "double",
        "at": "timestamp[us, UTC]",
    }
    assert (table["schema_id"], table["settings"]["max_files"]) == (1, 5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give a setting, --add-column or --widen-column"),
        (["--add-column", "price"], "'price' is not a column, expected `name:type`"),
        (["--add-column", "x:int64", "--add-column", "x:int32"], "column 'x' is given twice"),
        (["--add-column", "x:number"], "number"),
        (["--widen-column", "v:int32"], "is int64 and cannot become int32"),
    ],
)
def test_a_wrong_schema_change_is_refused_and_changes_nothing(
    neve: Shell, words: list[str], says: str
) -> None:
    result = neve.run("table", "set", "events", *words, code=2)
    assert says in " ".join(result.output.replace("│", " ").split())
    assert neve.json("table", "describe", "events")["schema_id"] == 0
