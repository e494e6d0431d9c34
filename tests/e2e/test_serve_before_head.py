"""`neve serve` that is started before the Ray head waits for it, as a driver and by Ray Client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neve.local.machine import LOOPBACK, find_java, free_ports
from neve.local.servers import stack_environment
from tests.support.installed import installation
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.redis_server import RedisServer, running

pytestmark = [pytest.mark.slow]

GIB = 1 << 30


def ray_environ(folder: Path) -> dict[str, str]:
    token = folder / "token"
    token.write_text("0" * 64)
    java = find_java(os.environ)
    mark = f"neve-{folder.name}"
    environ = stack_environment(
        os.environ, mark=mark, java=java, token_file=token, temporary=folder
    )
    return installation().environ(environ)


@contextmanager
def started_head(folder: Path, environ: dict[str, str], port: int, client: int) -> Iterator[None]:
    """Have a head start, and end it after the block."""
    zero = ("node-manager", "object-manager", "metrics-export", "runtime-env-agent")
    listening = [f"--{each}-port=0" for each in (*zero, "min-worker", "max-worker")]
    listening += ["--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [f"--node-ip-address={LOOPBACK}", f"--port={port}", *listening]
    command += [f"--ray-client-server-port={client}", "--include-dashboard=false", "--num-cpus=4"]
    command += [f"--memory={4 * GIB}", "--object-store-memory=100000000", "--disable-usage-stats"]
    command += [f"--temp-dir={folder}", "--include-log-monitor=false", "--no-monitor"]
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            # On a busy machine a head takes longer than the 30 s that Ray gives it.
            command,
            env=environ | {"RAY_raylet_start_wait_time_s": f"{SERVICE_S:.0f}"},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(PATIENCE_S)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@contextmanager
def serving(folder: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    program = installation().neve
    flags = ["--set", "groups.default.compactors={min = 0, max = 1}", "--with-service"]
    with (folder / "serve.log").open("wb") as errors:
        serve = subprocess.Popen(
            [program, "serve", "--json", "--wait", f"{SERVICE_S:.0f}s", *flags],
            env=environ,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield serve
    finally:
        serve.kill()
        serve.communicate()


def steps_until(serve: subprocess.Popen[str], step: str) -> list[str]:
    """Return the names of the steps up to one; all that come if it does not."""
    assert serve.stdout is not None
    names: list[str] = []
    for line in serve.stdout:
        names.append(json.loads(line)["step"])
        if names[-1] == step:
            break
    return names


def refusal(environ: dict[str, str]) -> str:
    """Return what a `neve serve` says that is not let in."""
    ended = subprocess.run(
        [installation().neve, "serve", "--once", "--wait", "0s"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    return " ".join(ended.stderr.split())


@pytest.mark.parametrize("by_client", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_head_that_starts_later_is_joined(
    redis: RedisServer, tmp_path_factory: pytest.TempPathFactory, *, by_client: bool
) -> None:
    # Ray's sockets lie below it, and their paths must be short.
    folder = tmp_path_factory.mktemp("h")
    environ = ray_environ(folder)
    port, client = free_ports(2)
    own = {
        "RAY_ADDRESS": f"ray://{LOOPBACK}:{client}" if by_client else f"{LOOPBACK}:{port}",
        "NEVE_STORE_URL": redis.url,
        "NEVE_GATEWAY_TOKEN": "a-token-of-the-test",
        "NEVE_GATEWAY_PORT": "0",
    }
    with serving(folder, environ | own) as serve:
        # The token is a value here, so serve notes first that Ray's head will keep it.
        begun = steps_until(serve, "waits")
        assert begun == ["note", "waits"], (folder / "serve.log").read_text()
        with started_head(folder, environ, port, client):
            names = steps_until(serve, "answers")
            assert names[-1] == "answers", (names, (folder / "serve.log").read_text())
            assert "joined" in names
            # Ray Client itself says after half a minute that the time is over.
            said = refusal(environ | own | {"RAY_AUTH_TOKEN": "1" * 64})
            assert "requires a token, and got a token that it refuses" in said
            said = refusal(environ | own | {"RAY_AUTH_MODE": "disabled"})
            assert "got no token, because RAY_AUTH_MODE is not `token`" in said
            serve.send_signal(signal.SIGTERM)
            assert steps_until(serve, "ended")[-2:] == ["drains", "ended"]
            assert serve.wait(SERVICE_S) == 0
