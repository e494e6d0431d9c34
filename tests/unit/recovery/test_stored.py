"""Who wrote a file, by its name: the folders of a partition change nothing."""

from __future__ import annotations

import pytest

from neve.recovery.stored import Whose, whose


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("_neve/last/job-1-att-1-0.parquet", Whose.OUTPUT),
        ("_neve/0a1b/day=1/land=a%2Fb/job-1-att-1-0.parquet", Whose.OUTPUT),
        ("_neve/0a1b/day=__HIVE_DEFAULT_PARTITION__/job-1-att-1-0.parquet", Whose.OUTPUT),
        ("_neve/0a1b/deeper/job-1-att-1-0.parquet", Whose.SERVICE),
        ("_neve/append/call-1.parquet", Whose.APPENDED),
        ("_neve/append/day=1/call-1.parquet", Whose.APPENDED),
        ("_neve/append/deeper/call-1.parquet", Whose.SERVICE),
        ("_neve/manifest/0000000001-1-m/part-00000.parquet", Whose.SERVICE),
        ("day=1/a.parquet", Whose.USER),
        ("day=1/_SUCCESS", Whose.OTHER),
    ],
)
def test_names_tell(path: str, expected: Whose) -> None:
    assert whose(path) is expected
