"""What is wrong with a cluster is named: by `neve serve`, `neve doctor` and `neve status`.

One Ray head, one node without Java and one Redis for all; each fault is made on the real thing.
The table in docs/operations.md says the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from neve.client import Client
from neve.local import LocalStack
from tests.support.installed import installation
from tests.support.patience import SERVICE_S
from tests.support.plain_node import plain_node
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.slow]

TOKEN = "a-token-of-faults"
DOORS = ("serve", "doctor", "status")
"""`neve serve` starts a service; the others try its start by the same function."""
GIB = 1 << 30
SETTINGS = """
[compactor]
slots = 1
executor_cores = 1
executor_memory = "512m"
beat_interval_s = 0.5
[groups.default]
compactors = { min = 0, max = 1 }
[groups.absent]
compactors = { min = 0, max = 1 }
resource = "neve_group_absent"
[groups.huge]
compactors = { min = 0, max = 1 }
resource = "neve_group_huge"
cores = 16
memory = "64g"
[groups.bare]
compactors = 1
resource = "neve_group_bare"
[gateway]
locations = ["/"]
[services.default]
planner = "ratio"
groups = [
  { group = "default", max_size = "1MB" },
  { group = "absent", max_size = "1GB" },
  { group = "huge", max_size = "2GB" },
  { group = "bare" },
]
"""
OTHER_VERSION = """
import json, sys, ray
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY as key
from ray._private.ray_constants import KV_NAMESPACE_CLUSTER as namespace
from ray._raylet import GcsClient
# Not as a driver: one of another release could not join for the way back.
head = GcsClient(address=sys.argv[1])
told = json.loads(head.internal_kv_get(key, namespace, 10))
was, told["ray_version"] = told["ray_version"], sys.argv[2] or ray.__version__
head.internal_kv_put(key, json.dumps(told).encode(), True, namespace, 10)
print(was)
"""


NODE_TYPES = """
import sys
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import ClusterConfig
config = ClusterConfig()
told = config.node_group_configs.add(name="only", max_count=3)
told.resources.update({"neve_group_absent": 1, "CPU": int(sys.argv[2]), "memory": 8 << 30})
GcsClient(address=sys.argv[1]).report_cluster_config(config.SerializeToString())
"""
NO_NODE_TYPES = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).report_cluster_config(b"")
"""


@dataclass
class Ground:
    """A cluster, a store, and `neve` on them."""

    stack: LocalStack
    redis: RedisServer
    folder: Path
    url: str = ""
    """Of the service, while one runs."""

    def environ(self, **changes: str) -> dict[str, str]:
        state = self.stack.folder.load()
        assert state is not None
        file = self.folder / "neve.toml"
        file.write_text(SETTINGS)
        return {
            **self.stack.driver_environ(),
            "RAY_ADDRESS": state.ray_address,
            "NEVE_CONFIG": str(file),
            "NEVE_HOME": str(self.folder / "nobody"),
            "NEVE_STORE_URL": self.redis.url,
            "NEVE_GATEWAY_TOKEN": TOKEN,
            "NEVE_GATEWAY_PORT": "0",
            "NEVE_TOKEN": TOKEN,
            **({"NEVE_URL": self.url} if self.url else {}),
            **changes,
        }

    def say(self, door: str, *, code: int | None = None, **changes: str) -> str:
        """Return all that a verb says; it ends with this code if one is given."""
        more = ["--once", "--wait", "0s"] if door == "serve" else []
        done = subprocess.run(
            [installation().neve, door, *more],
            env=self.environ(**changes),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SERVICE_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert code in {None, done.returncode}, done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def wait_until_said(self, door: str, *sentences: str) -> str:
        """Ask a door until it says some sentences; return all that it says.

        The coordinator looks every few seconds, and each process of `neve` takes two.
        """
        end_s = time.monotonic() + SERVICE_S
        while any(sentence not in (answer := self.say(door)) for sentence in sentences):
            assert time.monotonic() < end_s, answer
            time.sleep(3.0)
        return answer

    def set_version(self, version: str) -> str:
        """Let the head say that it runs a release of Ray, empty: its own; return what it said."""
        return self.tell_head(OTHER_VERSION, version)

    def tell_head(self, program: str, *more: str) -> str:
        """Run a program beside the head; return what it prints."""
        environ = self.environ()
        done = subprocess.run(
            [sys.executable, "-c", program, environ["RAY_ADDRESS"], *more],
            env=environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SERVICE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def ground(
    emptied: LocalStack, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    with plain_node(
        emptied,
        {"neve_group_huge": 1, "neve_group_bare": 1},
        cpus=2,
        memory_bytes=4 * GIB,
        java=False,
    ):
        yield Ground(emptied, redis, tmp_path_factory.mktemp("faults"))


# ------------------------------------------------------------------------ Before a service can be


@pytest.mark.parametrize(
    "door", [DOORS[0], *(pytest.param(door, marks=pytest.mark.long) for door in DOORS[1:])]
)
def test_no_ray_at_the_address(ground: Ground, door: str) -> None:
    code = {"serve": 4}.get(door)
    assert "no Ray answers at 127.0.0.1:1: Connection refused" in ground.say(
        door, code=code, RAY_ADDRESS="127.0.0.1:1"
    )


def test_no_token_for_ray(ground: Ground) -> None:
    variables = [name for name in ground.environ() if name.startswith("RAY_AUTH_TOKEN")]
    output = ground.say("doctor", **dict.fromkeys(variables, os.devnull))
    assert "requires a token, and got" in output
    assert "set RAY_AUTH_MODE=token" in output


def test_no_token_for_the_gateway(ground: Ground) -> None:
    assert "setting gateway.token is empty" in ground.say("serve", NEVE_GATEWAY_TOKEN="")


def test_another_release_of_ray(ground: Ground) -> None:
    ground.set_version("2.44.1")
    try:
        output = ground.say("doctor")
    finally:
        assert ground.set_version("") == "2.44.1"
    assert "runs another version" in output
    assert "2.44.1" in output


def test_a_redis_that_evicts(ground: Ground) -> None:
    ground.redis.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        output = ground.say("serve")
    finally:
        ground.redis.say("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert "setting store.url: the store has maxmemory-policy allkeys-lru" in output


def test_a_redis_without_aof_before_there_is_a_service(ground: Ground) -> None:
    ground.redis.say("CONFIG", "SET", "appendonly", "no")
    try:
        status = ground.say("status")
    finally:
        ground.redis.say("CONFIG", "SET", "appendonly", "yes")
    assert "the store (Redis) has no append-only file" in status


# ----------------------------------------------------------------------------- While a service runs


@dataclass
class Steps:
    """What a `neve serve --json` prints, line by line."""

    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)

    def follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def wait(self, step: str, **words: str) -> Mapping[str, Any]:
        """Return the first document of a step with these words in its fields."""
        end_s = time.monotonic() + SERVICE_S
        while True:
            for each in self.said:
                if each["step"] == step and all(w in each[n] for n, w in words.items()):
                    return each
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end_s, (step, words, self.said)
            time.sleep(0.1)


@contextmanager
def serving(ground: Ground, *more: str) -> Iterator[Steps]:
    """Run `neve serve --json` until the end of the block."""
    program = installation().neve
    with (ground.folder / "serve.log").open("a") as errors:
        process = subprocess.Popen(
            [program, "serve", "--json", *more],
            env=ground.environ(),
            cwd=ground.folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    steps = Steps(process)
    reader = threading.Thread(target=steps.follow, daemon=True)
    reader.start()
    try:
        yield steps
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def service(ground: Ground) -> Iterator[Steps]:
    with serving(ground) as steps:
        ground.url = str(steps.wait("answers")["url"])
        yield steps
    ground.url = ""


ABSENT = "no node has the Ray resource 'neve_group_absent'"
HUGE = (
    "group huge: no node with the Ray resource 'neve_group_huge' has the 16 CPUs and 78.4 GiB that"
    " its Spark executors require: the largest has 2 and 4.0 GiB"
)
BARE = "cannot start: Spark does not start: ConfigError: no Java on node"
NO_AOF = "the store (Redis) has no append-only file"
EVICTS = "the store (Redis) has maxmemory-policy allkeys-lru"


def test_groups_that_get_no_compactor(ground: Ground, service: Steps) -> None:
    sentences = ABSENT, HUGE, BARE
    for sentence in sentences:
        service.wait("note", text=sentence)
    ground.wait_until_said("status", *sentences)
    answer = ground.wait_until_said("doctor", *sentences)
    # Its compactor would go on trying to start Spark.
    Client(ground.url, token=TOKEN).scale_group("bare", 0)
    # No work waits: these are warnings.
    assert "no autoscaler adds such a node, so start one" in answer
    assert "shared memory" not in answer, "what only `neve up` needs"
    assert "groups warning" in answer


def test_node_types_that_the_autoscaler_knows_are_looked_at(ground: Ground, service: Steps) -> None:
    try:
        ground.tell_head(NODE_TYPES, "0")
        ground.wait_until_said("status", f"{ABSENT}; no node type of Ray's autoscaler has it")
        ground.tell_head(NODE_TYPES, "1")
        sentence = f"{ABSENT}; Ray's autoscaler adds a node when compactors are needed"
        ground.wait_until_said("status", sentence)
    finally:
        ground.tell_head(NO_NODE_TYPES)


def test_a_redis_that_was_changed(ground: Ground, service: Steps) -> None:
    ground.redis.say("CONFIG", "SET", "appendonly", "no")
    try:
        assert NO_AOF in ground.say("serve")
        ground.redis.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        for sentence in (NO_AOF, EVICTS):
            service.wait("note", text=sentence)
        for door in ("status", "doctor"):
            ground.wait_until_said(door, NO_AOF, EVICTS)
    finally:
        ground.redis.say("CONFIG", "SET", "appendonly", "yes")
        ground.redis.say("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_every_line_names_its_step(service: Steps) -> None:
    names = [each["step"] for each in service.said]
    assert names.index("joined") < names.index("started") < names.index("answers")
    assert set(names) <= {"note", "waits", "joined", "started", "answers"}
    started = {each["text"] for each in service.said if each["step"] == "started"}
    assert started == {"coordinator", "gateway"}
