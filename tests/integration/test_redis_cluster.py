"""A Redis Cluster of three real nodes is refused before anything starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from common.errors import ConfigError
from common.settings import StoreSettings
from neve.serve.preflight import require_store
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, free_port, running

pytestmark = [pytest.mark.integration]

SLOTS = 16_384
NODES = 3
REFUSED = (
    r"setting store\.url: the store \(Redis\) is a node of a Redis Cluster, and a store cannot be"
    r" spread over nodes: use a server with `cluster-enabled no`, and Sentinels for fail-over"
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Sequence[RedisServer]]:
    """A cluster that serves all slots, a third on each node."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(NODES)]
        found = [
            stack.enter_context(
                running(options=("--cluster-enabled", "yes", "--cluster-port", str(port)))
            )
            for port in ports
        ]
        for number, (node, bus) in enumerate(zip(found, ports, strict=True)):
            first, behind = number * SLOTS // NODES, (number + 1) * SLOTS // NODES
            node.say("CLUSTER", "ADDSLOTSRANGE", str(first), str(behind - 1))
            found[0].say("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(bus))
        until_s = time.monotonic() + PATIENCE_S
        while not all(serves(node) for node in found):
            assert time.monotonic() < until_s, [node.say("CLUSTER", "INFO") for node in found]
            time.sleep(0.1)
        yield found


def serves(node: RedisServer) -> bool:
    state = node.say("CLUSTER", "INFO")
    return b"cluster_state:ok" in state and b"cluster_known_nodes:%d" % NODES in state


def refusal(node: RedisServer) -> str:
    with pytest.raises(ConfigError, match=REFUSED) as refused:
        require_store(StoreSettings(url=node.url))
    return str(refused.value)


def test_no_node_of_a_cluster_is_taken(nodes: Sequence[RedisServer]) -> None:
    said = [refusal(node) for node in nodes]
    # The node that has the names of tables is asked what it is; the others say who has them.
    assert sum("MOVED" in each for each in said) == NODES - 1


def test_a_cluster_of_one_node_is_refused_as_well() -> None:
    bus = str(free_port())
    with running(options=("--cluster-enabled", "yes", "--cluster-port", bus)) as node:
        node.say("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        until_s = time.monotonic() + PATIENCE_S
        while b"cluster_state:ok" not in node.say("CLUSTER", "INFO"):
            assert time.monotonic() < until_s, node.say("CLUSTER", "INFO")
            time.sleep(0.1)
        refusal(node)
