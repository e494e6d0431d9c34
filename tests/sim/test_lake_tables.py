"""Lake tables from one seed each: all writers, and all that may fail, around the real service."""

from __future__ import annotations

import pytest

from common.lake.iceberg import commit as iceberg_commit
from common.lake.iceberg import expiry, orphans
from compactor import lake_commit
from tests.sim.test_lake_model import RULES
from tests.support.fast_and_slow import first_fast
from tests.support.lake_model import without
from tests.support.sim_lake_tables import beside_deletes, live_lake
from tests.support.sim_run import LONG, Setting, lived, run_all, set_to

# A killed process's coroutines are thrown away wherever they are; some would still say goodbye.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

FEW = range(8)
MANY = range(10_000 if LONG else 2_000)
MET = (
    *("own commits", "outputs in part", "commits with later deletes", "send: conflict"),
    *("send: late", "send: request lost", "send: answer lost"),
    *("send: false commit", "send: false conflict", "a day passes", "the store is lost"),
    *("attempts committed", "attempts conflicted", "attempts lost"),
    *("chaos: compactor killed", "chaos: compactor frozen", "chaos: coordinator killed"),
    *("chaos: second coordinator", "chaos: fail-over that forgot 1"),
    *("other: append", "other: vector", "other: copy", "other: compact", "other: restore"),
    *("other: schema", "other: checkpoint", "other: clean", "other: vacuum"),
    *("other: position", "other: equality", "other: upsert", "other: rollback"),
    *("other: branch", "other: put_back", "other: expire", "other: orphans"),
    *("expiries", "snapshots expired", "files deleted", "manifests merged"),
    *("other: slow append", "writers that died"),
)
"""What many lives have to meet."""
PLANTED = (
    "later deletes are carried over",
    "planned deletes must still be there",
    "a change of the schema ends the attempt",
    "outputs with common inputs stay together",
)
"""Guards of the rules of which the first seeds find the absence."""


MAINTENANCE: dict[str, tuple[int, Setting]] = {
    "files that live snapshots name stay": (
        5, (expiry._Candidates, "drop_live", lambda *_: None),
    ),
    "snapshots stay for a day": (5, (expiry, "recent", lambda *_: set[int]())),
    "files of snapshots that others expired stay for a day": (
        5, (orphans, "recent", lambda *_: set[int]()),
    ),
    "what may arrive is not deleted": (
        23,
        (
            iceberg_commit._Merge,
            "clean",
            lambda merge, table: iceberg_commit._delete(table.io, merge.written),
        ),
    ),
}  # fmt: skip
"""Guards of the maintenance of Iceberg tables: a seed that finds its absence, and what removes it.
"""


def test_no_row_is_lost_or_doubled() -> None:
    seen = lived(FEW, live_lake)

    assert min(seen[what] for what in ("own commits", "expiries", "manifests merged")) > 0
    assert seen["files deleted"] > 0


@pytest.mark.slow
@pytest.mark.long
def test_no_row_is_lost_or_doubled_in_many_lives() -> None:
    seen, failed = run_all(MANY, live=live_lake)

    assert not failed, failed[0]
    assert not [what for what in MET if not seen[what]], seen


@pytest.mark.parametrize("guard", first_fast(1, PLANTED, 1))
def test_lives_without_a_guard_fail(guard: str) -> None:
    with (
        set_to([(lake_commit, "rules", without(*RULES[guard][1]))]),
        pytest.raises(AssertionError, match="seed "),
    ):
        lived(range(60), live_lake)


@pytest.mark.parametrize("guard", first_fast(1, list(MAINTENANCE), 4))
def test_maintenance_without_a_guard_fails(guard: str) -> None:
    seed, without_it = MAINTENANCE[guard]
    with set_to([without_it]), pytest.raises(AssertionError, match=r"deleted|names \["):
        live_lake(seed)


@pytest.mark.parametrize("format_name", ["delta", "iceberg"])
def test_no_rewrite_is_thrown_away_beside_one_delete_a_second(format_name: str) -> None:
    cluster = live_lake(12, beside_deletes(format_name))
    seen = cluster.seen()

    assert seen["other: vector"] + seen["other: position"] >= 55
    assert seen["commits with later deletes"] >= 3
    assert seen["outputs committed"] == seen["outputs made"] >= 10
    ends = {name: count for name, count in seen.items() if name.startswith("attempts ")}
    assert ends == {"attempts committed": seen["own commits"]}
    print({name: seen[name] for name in ("outputs made", "outputs committed", "own commits")})
