"""Jobs that outgrow what a task may have, in a whole service: smaller next time, or quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from common.parquet.location import open_location
from neve.local import StackOptions
from tests.support.installed_stack import InstalledStack
from tests.support.readers import check_table
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow, pytest.mark.long]

RUNS, ROWS, WIDTH = 9, 50_000, 48
FAILURES = 5
LITTLE = replace(
    SETTINGS,
    coordinator=replace(SETTINGS.coordinator, quarantine_failures=FAILURES, backoff_max_s=1.0),
    compactor=replace(SETTINGS.compactor, task_memory="768m", task_memory_max="320m"),
)
WIDE = pa.schema([("k", pa.int64()), ("v", pa.int64()), *((f"c{n}", "f8") for n in range(WIDTH))])
HUGE = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.binary())])
HUGE_BYTES = 48 * 1024**2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("little-memory")
    options = StackOptions(compactors=1, settings=LITTLE)
    with InstalledStack.start(home=folder, name="memory", options=options) as stack:
        yield Service(stack, folder, compactors=1)


def make(service: Service, name: str, schema: pa.Schema) -> None:
    service.client.create_table(
        name,
        location=(service.folder / name).as_uri(),
        schema=schema,
        key=["k"],
        version_column="v",
        settings={"row_group_bytes": "8MB"},
    )
    service.client.pause(name)


def test_a_job_that_outgrows_its_task_is_done_in_smaller_steps(service: Service) -> None:
    """Nine runs of 20 MB, decoded, over one key range, each a single row group."""
    client, chance = service.client, np.random.default_rng(1)
    make(service, "wide", WIDE)
    for run in range(RUNS):
        columns = {"k": np.arange(ROWS), "v": np.full(ROWS, run)}
        columns |= {f"c{n}": chance.random(ROWS) for n in range(WIDTH)}
        client.append("wide", pa.table(columns, schema=WIDE))
    client.resume("wide")
    client.wait_until_at_rest("wide", timeout_s=150)

    *failed, last = reversed(client.history("wide"))
    assert last.end == "committed"
    assert failed
    assert {each.end for each in failed} == {"failed"}
    assert all("raise compactor.task_memory" in each.cause for each in failed), failed
    (left,) = client.files("wide")
    assert left.rows == ROWS
    assert client.scan("wide")["v"].to_pylist() == [RUNS - 1] * ROWS
    check_table(client, "wide", open_location((service.folder / "wide").as_uri()))


def test_a_job_that_fits_in_no_way_is_quarantined_and_says_what_to_do(service: Service) -> None:
    """Rows that are larger than what a task may have beside what it always needs."""
    client = service.client
    make(service, "huge", HUGE)
    for run in range(4):
        texts = [bytes([run + 1]) * HUGE_BYTES, b"small"]
        client.append("huge", pa.table({"k": [1, 2], "v": [run] * 2, "text": texts}, schema=HUGE))
    client.resume("huge")

    def reason() -> str:
        told = client.explain("huge")[0].sentences
        return next((each for each in told if each.startswith("quarantined")), "")

    said = service.wait("quarantine", reason)
    assert "raise compactor.task_memory" in said
    failed = client.history("huge")
    assert [each.end for each in failed] == ["failed"] * FAILURES
    assert len(client.files("huge")) == 4
    assert client.scan("huge", columns=["k", "v"])["v"].to_pylist() == [3, 3]
