"""The gateway as a Ray actor: it serves, and comes back at its port when its process dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pytest

from neve.client_connect import connect
from neve.client_errors import NeveError
from neve.local import LocalStack, StackOptions
from tests.support.patience import PATIENCE_S, SERVICE_S

pytestmark = pytest.mark.slow


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
