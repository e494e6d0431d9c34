"""A coordinator of an older release has a compactor of this one work for it.

So it is during an upgrade in which compactors are replaced first, and when an upgrade is taken
back. Gateway and coordinator are always replaced together; here the gateway of this release
stands in for the older one, whose package is not kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.client import Client
from neve.local import LocalStack
from neve.local.servers import NODE_RESOURCE
from tests.support import older_coordinator, parts_of_this_release
from tests.support.installed import installation
from tests.support.older_release import check_a_job_is_done, older_release, run_from
from tests.support.redis_server import RedisServer
from tests.support.stack import Service

pytestmark = [pytest.mark.slow, pytest.mark.long]

TOKEN = "a-token-of-older-parts"


def test_a_job_is_done_and_the_compactor_drained(
    emptied: LocalStack, redis: RedisServer, tmp_path: Path
) -> None:
    older = older_release(tmp_path / "older")
    this, stack = installation().packages, emptied
    where = (stack.ray_address, redis.user_url, str(stack.folder.logs))
    wire = run_from(older, older_coordinator, where, stack)
    assert wire == str(older / "common" / "wire.py")
    url = run_from(this, parts_of_this_release, (*where, NODE_RESOURCE, TOKEN), stack)

    client = Client(url, token=TOKEN)
    service = Service(stack, tmp_path, compactors=0, client=client)
    (compactor,) = service.wait("heartbeat", client.compactors)
    assert compactor.compactor == parts_of_this_release.COMPACTOR
    # The older release drains by a heartbeat's answer; the compactor then ends for good.
    check_a_job_is_done(service, client, tmp_path, parts_of_this_release.COMPACTOR, keyed=True)
