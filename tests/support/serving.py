"""`neve serve` on the bare half of a local stack: Redis and Ray run without a service.

The command is of any installed release, so that releases can replace each other on one cluster.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neve.client import Client
from neve.local import LocalStack
from neve.local.stack_folder import StackState
from tests.support.installed import Installation, installation
from tests.support.patience import SERVICE_S

TOKEN = "a-token-of-the-test"
END_ACTORS = """
import sys, time, ray
from contextlib import suppress
ray.init(address=sys.argv[1], namespace="neve", log_to_driver=False, logging_level="ERROR")
while names := ray.util.list_named_actors():
    # The coordinator first: it starts compactors.
    for name in sorted(names, key=lambda name: "coordinator" not in name):
        with suppress(ValueError):
            ray.kill(ray.get_actor(name))
    time.sleep(0.1)
"""


@dataclass
class Cluster:
    """Redis and Ray without a service, and a folder."""

    stack: LocalStack
    folder: Path
    settings: str
    """Of the service, as TOML."""
    port: int = 0
    """Of the gateway; 0: a free one at each start."""

    def environ(self, release: Installation | None = None) -> dict[str, str]:
        """Return the environment of a command.

        Args:
            release: Release of the command and of every actor that the command starts; this
                release if omitted, and for the actors the one that Ray was started with.
        """
        state = self.state()
        environ = {
            **self.stack.driver_environ(),
            "RAY_ADDRESS": state.ray_address,
            "NEVE_GATEWAY_PORT": str(self.port),
        }
        if release is None:
            (self.folder / "url").write_text(state.redis_url)
            (self.folder / "token").write_text(TOKEN)
            return environ | {
                "NEVE_STORE_URL_FILE": str(self.folder / "url"),
                "NEVE_GATEWAY_TOKEN_FILE": str(self.folder / "token"),
            }
        # Older releases take no secrets from files.
        secrets = {"NEVE_STORE_URL": state.redis_url, "NEVE_GATEWAY_TOKEN": TOKEN}
        environ = release.environ(environ | secrets, with_tests=True)
        variables = {name: environ[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PATH")}
        # Ray's own way to give a driver's actors an environment from outside.
        job = {"runtime_env": {"env_vars": variables}}
        return environ | {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}

    def state(self) -> StackState:
        state = self.stack.folder.load()
        assert state is not None
        return state

    def command(
        self, *more: str, settings: str | None = None, release: Installation | None = None
    ) -> list[str]:
        file = self.folder / "neve.toml"
        file.write_text(settings or self.settings)
        neve = (release or installation()).neve
        return [neve, "serve", "--config", str(file), "--json", *more]

    @contextmanager
    def serving(
        self, *more: str, settings: str | None = None, release: Installation | None = None
    ) -> Iterator[Serving]:
        """Run `neve serve` until the end of the block; yield it once the service answers."""
        log = self.folder / "serve.log"
        command = self.command("--health-port", "0", *more, settings=settings, release=release)
        with log.open("a") as errors:
            process = subprocess.Popen(
                command,
                env=self.environ(release),
                cwd=self.folder,  # Ray's workers look for modules where their driver was started
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield Serving(process, _answer(process, log), log)
        finally:
            process.kill()
            process.communicate()

    def kill_for_good(self, actor: str) -> None:
        """End an actor so that Ray does not start it again."""
        program = (
            "import ray, sys; ray.init(address=sys.argv[1], namespace='neve',"
            " log_to_driver=False); ray.kill(ray.get_actor(sys.argv[2]))"
        )
        environ = self.environ()
        command = [sys.executable, "-c", program, environ["RAY_ADDRESS"], actor]
        subprocess.run(command, env=environ, check=True, timeout=SERVICE_S)


def end_actors(stack: LocalStack) -> None:
    """End every actor of the service on a cluster, so that Ray does not start it again."""
    command = [sys.executable, "-c", END_ACTORS, stack.ray_address]
    environ = stack.driver_environ()
    subprocess.run(command, env=environ, cwd=stack.folder.logs, check=True, timeout=SERVICE_S)


@dataclass
class Serving:
    """A `neve serve` that has said that its service answers."""

    process: subprocess.Popen[str]
    said: dict[str, Any]
    log: Path

    @property
    def client(self) -> Client:
        return Client(self.said["url"], token=TOKEN)

    def probe(self, path: str) -> int:
        try:
            address = f"http://127.0.0.1:{self.said['health_port']}{path}"
            with urllib.request.urlopen(address, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SERVICE_S)


def _answer(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """Return what is said where the service is."""
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if said["step"] == "answers":
            return dict(said)
    pytest.fail(f"neve serve ended: {log.read_text()[-2000:]}")
