"""The actors of a service on real Ray, and their tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.local import LocalStack
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.redis_server import running
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

MEBI, GIBI = 1024**2, 1024**3


def program(stack: LocalStack, module: str, *words: str, **more: str) -> str:
    """Run a program that joins the stack's Ray; return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=stack.driver_environ() | more,
        cwd=stack.folder.logs,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


def gateway_process(port: int) -> psutil.Process:
    """Return the process that listens on a port."""
    for link in psutil.net_connections("tcp"):
        if link.status == psutil.CONN_LISTEN and link.laddr.port == port and link.pid:
            return psutil.Process(link.pid)
    raise AssertionError(f"no process listens on {port}")


def test_a_call_that_needs_more_memory_than_the_gateway_may_have_is_refused(
    service: Service, tmp_path: Path
) -> None:
    stack, client = service.stack, service.client
    port = int(stack.gateway_url.rpartition(":")[2])
    process = gateway_process(port)
    row = long_row(2 * GIBI)
    folder = tmp_path / "heavy"
    folder.mkdir()
    client.create_table("heavy", str(folder), schema=pa.schema([("texts", pa.list_(pa.string()))]))
    pq.write_table(row, folder / "f.parquet", store_schema=False)
    client.add_files("heavy", ["f.parquet"])

    answer = httpx.get(
        f"{stack.gateway_url}/v1/tables/heavy/scan",
        headers={"Authorization": f"Bearer {stack.token}"},
        timeout=PATIENCE_S,
    )

    assert answer.status_code == 503, answer.text[:500]
    assert "gateway.memory_max" in answer.json()["detail"]
    assert client.count("heavy") == 1
    assert gateway_process(port).pid == process.pid
    # What the call had is free for the others, down to the addresses.
    service.wait(
        "the memory is given back",
        lambda: client.count("heavy") and process.memory_info().data < GIBI,
    )


def long_row(size_bytes: int) -> pa.Table:
    """Return one row: a list of a text that comes again, so many bytes together."""
    text = "x" * MEBI
    indices = pa.array([0] * (size_bytes // MEBI), pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    ends = pa.array([0, len(texts)], pa.int32())
    return pa.table({"texts": pa.ListArray.from_arrays(ends, texts)})


def test_work_is_found_in_tasks_whatever_becomes_of_them(service: Service) -> None:
    stack = service.stack
    # Making many tablets at once takes a script, which the stack's own Redis would refuse.
    with running() as server:
        ours = {"SCAN_RAY": stack.ray_address, "SCAN_MARK": stack.state.mark}
        printed = program(stack, "tests.support.scan_life", SCAN_REDIS=server.url, **ours)
    found = json.loads(printed.splitlines()[-1])
    assert found["first"] == found["second"] == found["third"] == found["busy"]
    assert found["stable"] == found["tablets"] - len(found["busy"])
    assert found["planned again"] == len(found["busy"])
    assert found["killed"] >= 1
    pieces = 5
    assert found["nowhere failed"] == 3 * pieces
    assert found["nowhere found"] == []
    assert any("task failed" in line for line in found["logged"]), found["logged"]


def test_a_proxy_finds_the_coordinator_again(service: Service) -> None:
    """One proxy goes through refusals, a freeze and a death of the coordinator."""
    program(service.stack, "tests.support.coordinator_caller", str(service.stack.folder.path))
    service.wait("heartbeats", service.everybody_beats)
