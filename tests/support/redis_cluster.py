"""A real Redis Cluster: three primaries that have a third of the slots each, and their replicas."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from common.metadata.keys import TABLES, TableKeys
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import LOGIN, RedisServer, executable, free_port

NODE_TIMEOUT_MS = 1000
"""Silence after which nodes take one of them for dead. The default of Redis is 15 s."""
PRIMARIES = 3


class ClusterServer(RedisServer):
    """One node."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.bus = free_port()
        own = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus))
        quick = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0")
        super().__init__(folder, options=(*own, *quick, *options))

    @property
    def id(self) -> str:
        """Its name in the cluster."""
        return str(self.say("CLUSTER", "MYID").decode())

    def state(self) -> str:
        """Return what it says of the cluster."""
        return str(self.say("CLUSTER", "INFO").decode())

    def ranges(self) -> list[Any]:
        """Return its map: first and last slot, primary, replicas of each range; none if gone."""
        found: list[Any] = []
        with (
            contextlib.suppress(redis.RedisError),
            redis.Redis(port=self.port, socket_timeout=1.0) as link,
        ):
            found = link.execute_command("CLUSTER", "SLOTS")
        return found

    def owner_port(self, slot: int) -> int | None:
        """Return where it thinks that a slot is, or None."""
        for first, last, primary, *_ in self.ranges():
            if first <= slot <= last:
                return int(primary[1])
        return None

    def is_primary(self) -> bool:
        """Return whether it takes itself for a primary."""
        with redis.Redis(port=self.port, socket_timeout=1.0) as link:
            return bool(link.info("replication")["role"] == "master")


class RedisCluster:
    """All nodes: first the primaries, in the order of their slots, then replicas of each."""

    def __init__(self, folder: Path, *, replicas: int, options: Sequence[str] = ()) -> None:
        self.servers: list[ClusterServer] = []
        for number in range(PRIMARIES * (1 + replicas)):
            own = folder / f"node-{number}"
            own.mkdir()
            self.servers.append(ClusterServer(own, *options))

    @property
    def primaries(self) -> Sequence[ClusterServer]:
        """The nodes that began as primaries."""
        return self.servers[:PRIMARIES]

    @property
    def url(self) -> str:
        """The URL that names the nodes that began as primaries, and a user of Névé's rights."""
        places = ",".join(f"127.0.0.1:{primary.port}" for primary in self.primaries)
        return f"redis+cluster://{LOGIN}{places}"

    def start(self) -> None:
        """Start all; return when each node knows all, and replicas have what their primary has."""
        for server in self.servers:
            server.start()
        first = self.servers[0]
        for number, server in enumerate(self.primaries):
            begin, end = number * SLOTS // PRIMARIES, (number + 1) * SLOTS // PRIMARIES
            server.say("CLUSTER", "ADDSLOTSRANGE", str(begin), str(end - 1))
            server.say("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for server in self.servers[1:]:
            first.say("CLUSTER", "MEET", "127.0.0.1", str(server.port), str(server.bus))
        until("nodes know each other", lambda: all(map(self._knows_all, self.servers)))
        for number, server in enumerate(self.servers[PRIMARIES:]):
            server.say("CLUSTER", "REPLICATE", self.primaries[number % PRIMARIES].id)
        until(
            "nodes serve", lambda: all("cluster_state:ok" in each.state() for each in self.servers)
        )
        wanted = len(self.servers) // PRIMARIES - 1
        until("replicas", lambda: all(following(primary) == wanted for primary in self.primaries))
        # A primary that is lost is replaced only if all others have heard of its replica.
        until("maps", lambda: all(self._knows_replicas(each) for each in self.servers))

    def stop(self) -> None:
        """End all that still run."""
        for server in self.servers:
            server.stop()

    def owner(self, slot: int) -> ClusterServer:
        """Return the node that has a slot, as the first one that lives says."""
        port = next(port for server in self.servers if (port := server.owner_port(slot)))
        return next(server for server in self.servers if server.port == port)

    def place_of(self, table: str) -> int:
        """Return at which of the first primaries a table lies."""
        return key_slot((TableKeys(table).table).encode()) * PRIMARIES // SLOTS

    @property
    def place_of_names(self) -> int:
        """At which of the first primaries the names lie."""
        return key_slot((TABLES).encode()) * PRIMARIES // SLOTS

    def until_failed_over(self, lost: ClusterServer, slot: int) -> ClusterServer:
        """Return who has a slot once all that live know that it is not the one that was lost."""

        def moved() -> bool:
            living = [server for server in self.servers if server is not lost]
            return all(each.owner_port(slot) not in {None, lost.port} for each in living)

        until("fail-over", moved)
        return self.owner(slot)

    def _knows_all(self, server: ClusterServer) -> bool:
        return f"cluster_known_nodes:{len(self.servers)}" in server.state()

    def _knows_replicas(self, server: ClusterServer) -> bool:
        wanted = len(self.servers) // PRIMARIES
        ranges = server.ranges()
        return len(ranges) == PRIMARIES and all(len(nodes) == wanted for _, _, *nodes in ranges)

    def move_slot(self, slot: int, source: ClusterServer, target: ClusterServer) -> Iterator[int]:
        """Move a slot as redis-cli does, some keys at a time; yield how many are still to move."""
        target.say("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.id)
        source.say("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.id)
        while keys := source.say("CLUSTER", "GETKEYSINSLOT", str(slot), "4"):
            yield int(source.say("CLUSTER", "COUNTKEYSINSLOT", str(slot)))
            names = [key.decode() for key in keys]
            place = ("127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *names)
            source.say("MIGRATE", *place)
        for server in (target, source, *self.primaries):
            server.say("CLUSTER", "SETSLOT", str(slot), "NODE", target.id)
        yield 0


def following(server: RedisServer) -> int:
    """Return how many replicas of a server have all that it has."""
    with redis.Redis(port=server.port) as link:
        found: dict[str, Any] = link.info("replication")
    return sum(
        found[key]["state"] == "online" for key in found if key.removeprefix("slave").isdigit()
    )


def until(what: str, true: Callable[[], bool]) -> None:
    """Return when something is true."""
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, f"no {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def cluster_running(*, replicas: int = 2, options: Sequence[str] = ()) -> Iterator[RedisCluster]:
    """Run a cluster for the length of a block.

    Args:
        replicas: Of each primary. With `store.wait_replicas` 1 there are to be two, or nobody is
            left to wait for where one has taken over.
        options: Further ones of each server.
    """
    with tempfile.TemporaryDirectory(prefix="neve-cluster-", ignore_cleanup_errors=True) as folder:
        cluster = RedisCluster(Path(folder), replicas=replicas, options=options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three primaries for all tests of a session; each test makes tables of its own."""
    if executable() is None:
        pytest.skip("no redis-server on this machine")
    with cluster_running(replicas=0) as cluster:
        yield cluster
