"""The worked effects of a commit, in a memory store."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.metadata.codec.tablet import RESERVATION, SELECTION
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hset, set_string
from common.model.tablet import Selection
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.store_harness import Harness, applied, commit
from tests.unit.metadata.test_predicates import reservation

DATA = json.loads((Path(__file__).parents[2] / "data" / "accumulo.json").read_text())
CASES = [case for case in DATA["commit_effect"] if case["id"] not in {"CE6", "CE7"}]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_commit_has_the_recorded_effects(case: dict[str, Any]) -> None:
    asyncio.run(commit_effect(case))


async def commit_effect(case: dict[str, Any]) -> None:
    harness = Harness("memory", MemoryKeyspace(ManualClock()), ManualClock())
    before, after = case["before"], case["after"]
    tablet = await harness.tablet_with(*before["files"])
    keys = TabletKeys.of(tablet)
    (attempt, entry) = next(iter(before["running"].items()))
    held = replace(reservation(attempt, entry), output_prefix=f"out/{attempt}")
    await harness.write(hset(keys.running, {attempt: RESERVATION.pack(held)}))
    if selected := before.get("selected"):
        results = [path for path in selected["files"] if path.startswith("O")]
        selection = Selection(
            request=selected["request"],
            files=tuple(selected["files"]),
            results=tuple(results),
            completed_jobs=selected["completed_jobs"],
            since_s=7.0,
        )
        await harness.write(set_string(keys.selection, SELECTION.pack(selection)))

    name = f"out/{attempt}-0.parquet"
    change = commit(tablet, attempt, outputs=1 if case["commit"]["entries"] else 0)
    applied(await harness.apply(change))

    found = await harness.store.tablet(tablet)
    assert found is not None
    named = {path.replace(name, case["commit"]["output"]) for path in found.files}
    assert named == set(after["files"])
    assert found.running == {}
    assert found.done == set(after.get("completed_requests", ()))
    wanted = after.get("selected")
    assert (found.selection is None) is (wanted is None)
    if found.selection is not None:
        files = [path.replace(name, case["commit"]["output"]) for path in found.selection.files]
        assert files == wanted["files"]
        assert found.selection.completed_jobs == wanted["completed_jobs"]
        assert found.selection.since_s == 7.0
    garbage = [entry.path for entry in await harness.store.garbage(tablet.table)]
    assert garbage == sorted(before["running"][attempt]["files"])
