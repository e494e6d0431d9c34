"""The Redis of the manifests, run: its own settings and start script, on a real server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from common.settings import StoreSettings
from common.units import parse_size_bytes
from neve.local.machine import find_redis_server
from neve.serve.preflight import require_store
from tests.support.manifests import OVERLAYS, Resource, of_kind, one, rendered
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import free_port

PAUSE_S = 0.1
PASSWORD = "a-password-of-thirty-two-letters"
SERVICE_PASSWORD = "another-password-of-some-letters"
FOLDERS = ("/run/redis", "/etc/redis", "/data")

pytestmark = [pytest.mark.integration]


class Server:
    """The container of a Redis of the manifests, in a folder that stands for its root."""

    def __init__(self, root: Path, container: Resource, files: dict[str, str]) -> None:
        self.port, self._root, self._container = free_port(), root, container
        for folder in FOLDERS:
            (root / folder[1:]).mkdir(parents=True)
        for name, text in files.items():
            (root / "etc/redis" / name).write_text(self._moved(text), encoding="utf-8")
        # The server of this machine under the name that it has in the image.
        (root / "bin").mkdir()
        (root / "bin/valkey-server").symlink_to(find_redis_server(os.environ).program)

    def _moved(self, text: str) -> str:
        for folder in FOLDERS:
            text = re.sub(rf"(?<![\w/]){folder}\b", f"{self._root}{folder}", text)
        return text.replace("port 6379", f"port {self.port}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it as Kubernetes would, and end it as Kubernetes would."""
        words = [*self._container["command"], *self._container["args"]]
        environ = {"PATH": f"{self._root}/bin:{os.environ['PATH']}", "REDIS_PASSWORD": PASSWORD}
        if "SERVICE_PASSWORD" in {entry["name"] for entry in self._container["env"]}:
            environ["SERVICE_PASSWORD"] = SERVICE_PASSWORD
        process = subprocess.Popen(
            [self._moved(word) for word in words], env=environ, stdout=subprocess.DEVNULL
        )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()

    def client(self) -> redis.Redis:
        """Return a client that asks again while the server starts."""
        return redis.Redis(
            port=self.port,
            password=PASSWORD,
            decode_responses=True,
            retry=Retry(ConstantBackoff(PAUSE_S), int(PATIENCE_S / PAUSE_S)),
            retry_on_error=[redis.ConnectionError, redis.exceptions.BusyLoadingError],
        )

    def refuses_strangers(self) -> bool:
        """Return whether a command without the password is refused."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as stranger:
            stranger.sendall(b"GET a\r\n")
            return stranger.recv(100).startswith(b"-NOAUTH")


def server_of(root: Path, overlay: str, name: str) -> Server:
    resources = rendered(overlay)
    (container,) = one(resources, "StatefulSet", name)["spec"]["template"]["spec"]["containers"]
    return Server(root, container, one(resources, "ConfigMap", "redis-settings")["data"])


CASES = [("laptop", "neve-redis"), ("laptop", "ray-redis"), ("production", "ray-redis")]


@pytest.mark.parametrize(("overlay", "name"), CASES)
def test_it_keeps_what_it_has_and_throws_nothing_away(
    overlay: str, name: str, tmp_path: Path
) -> None:
    server = server_of(tmp_path, overlay, name)

    with server.running(), server.client() as client:
        client.set("a", "1")
        policy = client.config_get("maxmemory-policy")["maxmemory-policy"]
        assert policy == "noeviction"
        assert int(client.config_get("maxmemory")["maxmemory"]) > 0
        assert client.info("persistence")["aof_enabled"] == 1
    with server.running(), server.client() as client:
        assert client.get("a") == "1"


def test_it_lets_nobody_in_without_the_password(tmp_path: Path) -> None:
    server = server_of(tmp_path, "laptop", "neve-redis")

    with server.running(), server.client() as client:
        client.ping()
        assert server.refuses_strangers()
        password = tmp_path / "run/redis/password.conf"
        assert password.stat().st_mode & 0o077 == 0
        lines = subprocess.check_output(["ps", "-eo", "args"], text=True, timeout=PATIENCE_S)
        assert PASSWORD not in lines
        assert SERVICE_PASSWORD not in lines
        # What the service's secret names may use the store, and no more.
        url = f"redis://neve:{SERVICE_PASSWORD}@127.0.0.1:{server.port}/0"
        assert require_store(StoreSettings(url=url)) == ()
        with redis.Redis.from_url(url) as service, pytest.raises(NoPermissionError):
            service.config_get("requirepass")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_its_memory_fits_into_its_container(overlay: str) -> None:
    for each in of_kind(rendered(overlay), "StatefulSet"):
        if each["metadata"]["name"] == "neve-sentinel":
            continue  # It holds no data.
        (container,) = each["spec"]["template"]["spec"]["containers"]
        size = parse_size_bytes(container["args"][1].upper(), "maxmemory")
        limit: str = container["resources"]["limits"]["memory"]
        limit_bytes = parse_size_bytes(limit.removesuffix("i"), "limit")

        # The rewrite of an append-only file may copy what changes meanwhile: half is left for it.
        assert 2 * size <= limit_bytes
