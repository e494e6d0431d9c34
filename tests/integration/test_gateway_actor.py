"""The gateway as a Ray actor: it serves, and comes back at its port when its process dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.settings import GatewaySettings, Settings
from neve.client.connect import connect
from neve.client.errors import NeveError
from neve.local import LocalStack, StackOptions
from tests.support.patience import PATIENCE_S, SERVICE_S

pytestmark = pytest.mark.slow

MEBI, GIBI = 1024**2, 1024**3


def gateway_process(port: int) -> psutil.Process:
    """Return the process that listens on a port."""
    for link in psutil.net_connections("tcp"):
        if link.status == psutil.CONN_LISTEN and link.laddr.port == port and link.pid:
            return psutil.Process(link.pid)
    raise AssertionError(f"nobody listens on {port}")


def test_a_gateway_serves_and_comes_back(tmp_path: Path) -> None:
    with LocalStack.start(home=tmp_path, options=StackOptions(compactors=0)) as stack:
        client = connect(stack.gateway_url, stack.token)
        schema = pa.schema([("x", pa.int64())])
        client.create_table("bag", str(tmp_path / "bag"), schema=schema)
        client.append("bag", pa.table({"x": [1, 2]}))
        assert client.count("bag") == 2
        assert httpx.get(f"{stack.gateway_url}/readyz", timeout=PATIENCE_S).status_code == 200
        assert client.explain("bag")[0].table == "bag"

        port = int(stack.gateway_url.rpartition(":")[2])
        os.kill(gateway_process(port).pid, signal.SIGKILL)

        until_s = time.monotonic() + SERVICE_S
        while True:
            try:
                assert client.count("bag") == 2
                break
            except NeveError:
                assert time.monotonic() < until_s
                time.sleep(0.2)


def test_a_call_that_needs_more_memory_than_the_gateway_may_have_is_told_so(
    tmp_path: Path,
) -> None:
    gateway = GatewaySettings(memory_max=GIBI)
    options = StackOptions(compactors=0, settings=Settings(gateway=gateway))
    with LocalStack.start(home=tmp_path, options=options) as stack:
        client = connect(stack.gateway_url, stack.token)
        port = int(stack.gateway_url.rpartition(":")[2])
        process = gateway_process(port)
        row = long_row(2 * GIBI)
        folder = tmp_path / "data" / "heavy"
        folder.mkdir(parents=True)
        client.create_table(
            "heavy", str(folder), schema=pa.schema([("texts", pa.list_(pa.string()))])
        )
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


def long_row(size_bytes: int) -> pa.Table:
    """Return one row: a list of a text that comes again, so many bytes together."""
    text = "x" * MEBI
    indices = pa.array([0] * (size_bytes // MEBI), pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    ends = pa.array([0, len(texts)], pa.int32())
    return pa.table({"texts": pa.ListArray.from_arrays(ends, texts)})
