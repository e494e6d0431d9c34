"""Servers and Sentinels of the manifests, run: their own scripts and settings, a fail-over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from common.metadata.keyspace import RedisUser, acl_rules
from common.settings import StoreSettings
from neve.local.machine import find_redis_server
from neve.serve.preflight import require_store
from tests.support.manifests import one, rendered
from tests.support.patience import PATIENCE_S
from tests.support.redis_sentinels import until
from tests.support.redis_server import free_port

PASSWORD, ANOTHER = "a-password-of-the-test", "another-password-of-the-test"
SERVICE_PASSWORD = "a-password-of-the-service"
SERVICE = "neve-store"
VARIABLES = {"REDIS_PASSWORD", "SERVICE_PASSWORD", "POD_NAME", "ANNOUNCED", "FIRST_PRIMARY"}
FOLDERS = ("/run/redis", "/etc/redis-sentinel", "/etc/redis", "/data")

pytestmark = [pytest.mark.integration]


@dataclass
class RunningPod:
    """The container of a pod, in a folder that stands for its root; its name is `localhost`."""

    root: Path
    name: str
    port: int
    first: int
    """Port of the server that begins as the primary."""
    usual_port: str
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        resources = rendered("production-sentinel")
        owner = self.name.rpartition("-")[0]
        template = one(resources, "StatefulSet", owner)["spec"]["template"]["spec"]
        (self.container,) = template["containers"]
        for folder in FOLDERS:
            (self.root / folder[1:]).mkdir(parents=True)
        for settings, folder in (
            ("redis-settings", "etc/redis"),
            ("redis-sentinel-settings", "etc/redis-sentinel"),
        ):
            for name, text in one(resources, "ConfigMap", settings)["data"].items():
                (self.root / folder / name).write_text(self._moved(text), "utf-8")
        (self.root / "bin").mkdir()
        (self.root / "bin/valkey-server").symlink_to(find_redis_server(os.environ).program)

    def _moved(self, text: str) -> str:
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w/]){folder}(?![\w-])", f"{self.root}{folder}", text)
        return text.replace(f"port {self.usual_port}", f"port {self.port}")

    def start(self, password: str = PASSWORD) -> None:
        """Start it, as Kubernetes does after every end."""
        names = {entry["name"] for entry in self.container["env"]}
        assert names == VARIABLES
        environ = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "REDIS_PASSWORD": password,
            "SERVICE_PASSWORD": SERVICE_PASSWORD,
            "POD_NAME": self.name,
            "ANNOUNCED": "localhost",
            "FIRST_PRIMARY": f"localhost {self.first}",
        }
        words = [*self.container["command"], *self.container.get("args", [])]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._moved(word) for word in words],
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, *words: str, password: str = PASSWORD) -> Any:
        with redis.Redis(port=self.port, password=password, decode_responses=True) as link:
            return link.execute_command(*words)

    def role(self, password: str = PASSWORD) -> str:
        """Return the role of a server; empty: it does not answer yet."""
        with suppress(redis.ConnectionError):
            return str(self.ask("ROLE", password=password)[0])
        return ""

    def replicas(self, password: str = PASSWORD) -> int:
        """Return how many servers follow it."""
        return int(self.ask("INFO", "replication", password=password)["connected_slaves"])

    def refuses_strangers(self) -> bool:
        """Return whether a command without a password is refused."""
        with pytest.raises(redis.AuthenticationError), redis.Redis(port=self.port) as link:
            link.execute_command("SENTINEL", "MASTERS")
        return True

    def end(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(PATIENCE_S)
            self._process = None


@dataclass
class Store:
    servers: list[RunningPod]
    sentinels: list[RunningPod]

    def start(self, password: str = PASSWORD) -> None:
        for server in (*self.servers, *self.sentinels):
            server.start(password)

    def end(self, number: int = signal.SIGTERM) -> None:
        for sentinel in (*self.sentinels, *self.servers):
            sentinel.end(number)

    def url(self, password: str = SERVICE_PASSWORD) -> str:
        """Return the URL that the page on the secrets has written."""
        places = ",".join(f"localhost:{sentinel.port}" for sentinel in self.sentinels)
        login = f"sentinel_username=neve&sentinel_password={password}"
        return f"redis+sentinel://neve:{password}@{places}/{SERVICE}/0?{login}"

    def all_know(self, password: str = PASSWORD) -> bool:
        """Return whether every Sentinel has found the replicas and the other Sentinels."""
        with suppress(redis.ConnectionError):
            for sentinel in self.sentinels:
                state = sentinel.ask("SENTINEL", "MASTER", SERVICE, password=password)
                known = (state["num-slaves"], state["num-other-sentinels"], state["flags"])
                if tuple(map(str, known)) != ("2", "2", "master"):
                    return False
            return True
        return False

    def primary(self, password: str = PASSWORD) -> int:
        """Return the port that all Sentinels name; 0: they do not agree, or do not answer."""
        with suppress(redis.ConnectionError):
            ports = {
                int(
                    sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE, password=password)[
                        1
                    ]
                )
                for sentinel in self.sentinels
            }
            return ports.pop() if len(ports) == 1 else 0
        return 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    ports = [free_port() for _ in range(3)]
    servers = [
        RunningPod(tmp_path / f"s{n}", f"neve-redis-{n}", port, ports[0], "6379")
        for n, port in enumerate(ports)
    ]
    sentinels = [
        RunningPod(tmp_path / f"w{n}", f"neve-sentinel-{n}", free_port(), ports[0], "26379")
        for n in range(3)
    ]
    pods = Store(servers, sentinels)
    pods.start()
    try:
        until("Sentinels that know all", pods.all_know)
        yield pods
    finally:
        pods.end(signal.SIGKILL)


def test_it_fails_over_and_keeps_its_roles_when_all_start_anew(store: Store) -> None:
    first, *others = store.servers
    settings = StoreSettings(url=store.url(), wait_replicas=1, timeout_s=5.0)
    until("replicas that follow", lambda: [other.role() for other in others] == ["slave"] * 2)
    assert require_store(settings) == ()
    first.ask("SET", "a", "1")
    assert first.ask("WAIT", "2", "10000") == 2

    first.end(signal.SIGKILL)
    until("a fail-over", lambda: store.primary() not in (0, first.port))
    (primary,) = (other for other in others if other.port == store.primary())
    until("its promotion", lambda: primary.role() == "master")
    # Its pod comes again. It must follow, though it began as the primary.
    first.start()
    until("its demotion", lambda: first.role() == "slave")
    until("replicas that follow", lambda: primary.replicas() == 2)
    primary.ask("SET", "b", "2")
    assert primary.ask("WAIT", "2", "10000") == 2

    # All nodes go at once; with another password, as after a change of the secret.
    store.end()
    store.start(ANOTHER)
    until("Sentinels that know all", lambda: store.all_know(ANOTHER))
    assert store.primary(ANOTHER) == primary.port
    assert [server.role(ANOTHER) for server in store.servers].count("master") == 1
    assert primary.ask("MGET", "a", "b", password=ANOTHER) == ["1", "2"]
    until("replicas that follow", lambda: primary.replicas(ANOTHER) == 2)
    assert require_store(settings) == ()


def test_the_user_of_the_service_may_change_nothing_but_its_keys(store: Store) -> None:
    for server in (*store.servers, *store.sentinels):
        link = redis.Redis(port=server.port, username="neve", password=SERVICE_PASSWORD)
        for words in ("CONFIG GET requirepass", "ACL LIST", "SHUTDOWN", "SENTINEL RESET *"):
            with pytest.raises(redis.ResponseError, match=r"no permissions|unknown command"), link:
                link.execute_command(*words.split())
        assert server.refuses_strangers()


def test_the_rights_are_those_that_the_verb_prints() -> None:
    resources = rendered("production-sentinel")
    for settings, role in (
        ("redis-settings", RedisUser.STORE),
        ("redis-sentinel-settings", RedisUser.SENTINEL),
    ):
        written = one(resources, "ConfigMap", settings)["data"]["neve.acl"]
        assert written.split() == acl_rules(role).split()


def test_nobody_else_reads_the_password(store: Store) -> None:
    files = [
        path
        for server in (*store.servers, *store.sentinels)
        for path in server.root.rglob("*.conf")
        if any(secret in path.read_text("utf-8") for secret in (PASSWORD, SERVICE_PASSWORD))
    ]
    assert files
    assert not [path for path in files if path.stat().st_mode & 0o077]
    lines = subprocess.check_output(["ps", "-eo", "args"], text=True, timeout=PATIENCE_S)
    assert PASSWORD not in lines
    assert SERVICE_PASSWORD not in lines
