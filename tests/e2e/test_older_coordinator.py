"""A coordinator of an older release has a compactor of this one work for it.

So it is during an upgrade in which compactors are replaced first, and when an upgrade is taken
back. Gateway and coordinator are always replaced together; here the gateway of this release
stands in for the older one, whose package is not kept.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from neve.client import Client
from neve.local import LocalStack, StackOptions
from neve.local.ray_head import NODE_RESOURCE
from tests.support import older_coordinator, parts_of_this_release
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.older_release import older_release
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

TOKEN = "a-token-of-the-test"


def run(stack: LocalStack, program: ModuleType, told: tuple[str, ...], path: Path) -> str:
    """Run a program with a folder first in its search path; return what it prints."""
    variables: tuple[str, ...] = program.VARIABLES
    ended = subprocess.run(
        # Without the program's own folder: its modules are called like others.
        [sys.executable, "-P", str(program.__file__)],
        env=stack.driver_environ()
        | {"PYTHONPATH": str(path)}
        | dict(zip(variables, told, strict=True)),
        cwd=path,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_job_is_done_and_the_compactor_drained(tmp_path: Path) -> None:
    older = older_release(tmp_path / "older")
    this = Path(__file__).parents[2]
    options = StackOptions(actors=False, compactors=1)
    with LocalStack.start(home=tmp_path / "home", options=options) as stack:
        state = stack.folder.load()
        assert state is not None
        where = (state.ray_address, state.redis_url, str(stack.folder.logs))
        wire = run(stack, older_coordinator, where, older)
        assert wire == str(older / "common" / "wire.py")
        url = run(stack, parts_of_this_release, (*where, NODE_RESOURCE, TOKEN), this)

        client = Client(url, token=TOKEN)
        service = Service(stack, tmp_path, compactors=0, client=client)
        (compactor,) = service.wait("heartbeat", client.compactors)
        assert compactor.compactor == parts_of_this_release.COMPACTOR

        table = LedgerTable(client, tmp_path, keyed=True)
        table.add(*(keyed_rows(range(1000), version) for version in range(4)))
        service.wait("commit", table.commits, table=table)
        service.wait_until_at_rest(table)

        table.check_rows()
        history = client.history(table.name)
        assert {each.compactor for each in history} == {parts_of_this_release.COMPACTOR}
        assert {each.end for each in history} == {"committed"}
        # The older release drains by a heartbeat's answer; the compactor then ends for good.
        client.drain(parts_of_this_release.COMPACTOR)
        service.wait("goodbye", lambda: not client.compactors())
