"""A rebuild on the running service is broken off: the caller leaves, the gateway is killed."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from neve.api import Table
from neve.client.errors import NeveError, RefusedError
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

NAME = "broken"
FILES = 30
ROWS = 10
"""Per file, and per tablet."""


class LeftError(Exception):
    """The caller has gone."""


def published_table(service: Service) -> str:
    """Make a table of many tablets with a file each, whose manifest names all; return its place."""
    client, folder = service.client, service.folder / NAME
    client.create_table(
        NAME,
        str(folder),
        schema=pa.schema([("id", pa.int64()), ("v", pa.int64())]),
        key=["id"],
        version_column="v",
        splits=[str(number * ROWS - 1) for number in range(1, FILES)],
        settings={"manifest_interval_s": "1s"},
    )
    ids = list(range(FILES * ROWS))
    client.append(NAME, pa.table({"id": ids, "v": [1] * len(ids)}))
    pointer = folder / "_neve/manifest/latest.json"

    def names_all() -> bool:
        return json.loads(pointer.read_text("utf-8"))["totals"]["rows"] == len(ids)

    service.wait("a manifest of all rows", lambda: pointer.exists() and names_all())
    return str(folder)


def found(service: Service) -> Table | None:
    with suppress(NeveError):
        return next((table for table in service.client.tables() if table.name == NAME), None)
    return None


def drop(service: Service) -> None:
    if found(service) is not None:
        service.client.drop(NAME)
    service.wait("the table to be gone", lambda: found(service) is None)


def kill_while_filling(service: Service, location: str) -> None:
    """Kill the gateway while it puts files in, or soon after."""

    def call() -> None:
        with suppress(NeveError):
            service.client.rebuild(location, NAME)

    caller, gateway = threading.Thread(target=call), service.actor("GatewayActor")
    caller.start()
    while found(service) is None and caller.is_alive():
        time.sleep(0.002)
    service.kill(gateway)
    caller.join()


def test_no_row_is_lost_by_rebuilds_that_were_broken_off(service: Service) -> None:
    location = published_table(service)

    def leave(text: str) -> None:
        if text.startswith(f"{NAME}: "):  # Files are put in.
            raise LeftError

    for _ in range(2):
        drop(service)
        with pytest.raises(LeftError):
            service.client.rebuild(location, NAME, progress=leave)
    if found(service) is None:
        service.client.rebuild(location, NAME)
    drop(service)
    kill_while_filling(service, location)
    service.wait("the gateway to be back", lambda: found(service) is not None)
    table = found(service)
    assert table is not None
    if table.filling is not None:
        with pytest.raises(RefusedError, match="is being filled"):
            service.client.append(NAME, pa.table({"id": [0], "v": [2]}))
        assert any("is being filled" in warning for warning in service.client.status().warnings)
    drop(service)
    done = service.client.rebuild(location, NAME)
    assert (done.rows, done.files, done.lost, done.state) == (FILES * ROWS, FILES, {}, "live")
    assert service.client.count(NAME) == FILES * ROWS
    service.client.drop(NAME, delete_files=True)
