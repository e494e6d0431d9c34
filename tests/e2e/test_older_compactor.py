"""A compactor of an older release works for a coordinator of this one, as during an upgrade."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import CompactorCount
from neve.local import LocalStack, StackOptions
from neve.local.options import with_group
from neve.local.ray_head import NODE_RESOURCE
from tests.support import older_compactor
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.older_release import older_release
from tests.support.patience import SERVICE_S
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]


def start_older_compactor(stack: LocalStack, older: Path) -> str:
    """Start it; return the module of messages that such a process has imported."""
    told = (stack.ray_address, stack.redis_url, str(stack.folder.logs), NODE_RESOURCE)
    ended = subprocess.run(
        # Without the program's own folder: its modules are called like others.
        [sys.executable, "-P", older_compactor.__file__],
        env=stack.driver_environ()
        | {"PYTHONPATH": str(older)}
        | dict(zip(older_compactor.VARIABLES, told, strict=True)),
        cwd=older,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_job_is_done_and_the_compactor_drained(tmp_path: Path) -> None:
    older = older_release(tmp_path / "older")
    # The group may have a compactor, and needs none until there is a job.
    count = CompactorCount(min=0, max=1)
    options = StackOptions(settings=with_group(SETTINGS, "compactors", compactors=count))
    with LocalStack.start(home=tmp_path / "home", options=options) as stack:
        service = Service(stack, tmp_path, compactors=0)
        client = service.client
        assert start_older_compactor(stack, older) == str(older / "common" / "wire.py")
        (compactor,) = service.wait("heartbeat", client.compactors)
        assert (compactor.compactor, compactor.draining) == (older_compactor.COMPACTOR, False)

        table = LedgerTable(client, tmp_path, keyed=True)
        table.add(*(keyed_rows(range(1000), version) for version in range(4)))
        service.wait("commit", table.commits, table=table)
        service.wait_until_at_rest(table)

        table.check_rows()
        history = client.history(table.name)
        assert {each.compactor for each in history} == {older_compactor.COMPACTOR}
        assert {each.end for each in history} == {"committed"}
        client.drain(older_compactor.COMPACTOR)
        service.wait("goodbye", lambda: not client.compactors())
