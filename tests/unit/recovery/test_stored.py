"""Who wrote a file, by its name: the folders of a partition change nothing."""

from __future__ import annotations

import pytest

from neve.recovery.stored_files import FileOrigin, file_origin


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("_neve/last/job-1-att-1-0.parquet", FileOrigin.OUTPUT),
        ("_neve/0a1b/day=1/land=a%2Fb/job-1-att-1-0.parquet", FileOrigin.OUTPUT),
        ("_neve/0a1b/day=__HIVE_DEFAULT_PARTITION__/job-1-att-1-0.parquet", FileOrigin.OUTPUT),
        ("_neve/0a1b/deeper/job-1-att-1-0.parquet", FileOrigin.SERVICE),
        ("_neve/append/call-1.parquet", FileOrigin.APPENDED),
        ("_neve/append/day=1/call-1.parquet", FileOrigin.APPENDED),
        ("_neve/append/deeper/call-1.parquet", FileOrigin.SERVICE),
        ("_neve/manifest/0000000001-1-m/part-00000.parquet", FileOrigin.SERVICE),
        ("day=1/a.parquet", FileOrigin.USER),
        ("day=1/_SUCCESS", FileOrigin.OTHER),
    ],
)
def test_the_name_of_a_file_tells_its_origin(path: str, expected: FileOrigin) -> None:
    assert file_origin(path) is expected
