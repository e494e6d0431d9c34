"""A compactor of an older release works for a coordinator of this one, as during an upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.settings import CompactorCount
from neve.local import StackOptions
from neve.local.options import with_group
from tests.support import older_compactor
from tests.support.installed_stack import InstalledStack
from tests.support.older_release import check_a_job_is_done, older_release, run_from
from tests.support.plain_node import plain_node
from tests.support.stack import SETTINGS, Service

OLDER_NODE = "neve_node_older"
"""A pod has its own image: processes of this node import the older release."""
WARNING = f"compactor {older_compactor.COMPACTOR} of group default is of an older release"

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_job_is_done_and_the_compactor_drained(tmp_path: Path) -> None:
    older = older_release(tmp_path / "older")
    # The group may have a compactor, and needs none until there is a job.
    count = CompactorCount(min=0, max=1)
    options = StackOptions(settings=with_group(SETTINGS, "compactors", compactors=count))
    with (
        InstalledStack.start(home=tmp_path / "home", options=options) as stack,
        plain_node(stack, {OLDER_NODE: 1}, cpus=4, memory_bytes=4 << 30, java=True, release=older),
    ):
        service = Service(stack, tmp_path, compactors=0)
        client = service.client
        values = (stack.ray_address, stack.redis_url, str(stack.folder.logs), OLDER_NODE)
        wire = run_from(older, older_compactor, values, stack)
        assert wire == str(older / "common" / "wire.py")
        # The autoscaler does not count a compactor that others have started, and would start one.
        client.scale_group("default", 0)
        (compactor,) = service.wait("heartbeat", client.compactors)
        assert (compactor.compactor, compactor.draining) == (older_compactor.COMPACTOR, False)
        # It does not look for buffered rows, so it gets no job that may drop rows.
        assert any(WARNING in text for text in client.status().warnings)
        check_a_job_is_done(service, client, tmp_path, older_compactor.COMPACTOR, keyed=False)
