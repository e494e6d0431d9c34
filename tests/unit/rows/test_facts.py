"""Facts of rows that come in several pieces."""

import math
from datetime import date
from itertools import chain

import pyarrow as pa
import pytest

from common.errors import RequestError
from common.model.table import Column
from common.rows.row_facts import (
    RowFacts,
    RowTally,
    time_ends_s,
)
from common.rows.rules import RowRules

RULES = RowRules(
    schema=(Column("k", "int64"), Column("v", "int64"), Column("at", "double")),
    key=("k",),
    version_column="v",
    time_column="at",
)


def tally_of(*pieces: list[int]) -> RowFacts:
    tally = RowTally(RULES)
    for keys in pieces:
        tally.see(pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())}))
    return tally.facts()


@pytest.mark.parametrize(
    ("pieces", "clean"),
    [
        ([[1, 2], [3]], True),
        ([[1, 2], [], [3]], True),
        ([[1, 2], [2]], False),
        ([[1, 1], [2, 3]], False),
        ([[2], [1], [3]], False),
        ([], True),
    ],
)
def test_clean_means_ascending_across_pieces(pieces: list[list[int]], *, clean: bool) -> None:
    facts = tally_of(*pieces)
    assert facts.clean is clean
    assert facts.rows == sum(map(len, pieces))
    assert facts.key_min == tally_of(sorted(chain.from_iterable(pieces))).key_min


@pytest.mark.parametrize(
    ("times", "ends"),
    [
        (pa.array([1500, -500, None], pa.timestamp("ms")), (-0.5, 1.5)),
        (pa.array([date(1970, 1, 2), date(1969, 12, 31)]), (-86_400.0, 86_400.0)),
        (pa.array([7, 5], pa.uint64()), (5.0, 7.0)),
        (pa.array([math.nan, 1.5, math.inf, None]), (1.5, 1.5)),
        (pa.array([math.nan]), (None, None)),
        (pa.array([], pa.int8()), (None, None)),
    ],
)
def test_times_are_told_in_seconds(
    times: pa.Array, ends: tuple[float | None, float | None]
) -> None:
    assert time_ends_s(times) == ends
    assert time_ends_s(pa.chunked_array([times, times])) == ends


def test_rows_without_key_or_version_are_refused() -> None:
    with pytest.raises(RequestError, match="file a lacks the columns k, v"):
        RowTally(RULES).see(pa.table({"at": [1.0]}), "file a")
