"""Other users of the machine: a running service lets them in nowhere."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from tests.support.neighbour import (
    METHODS,
    as_nobody,
    grpc_code,
    kind_that_refuses,
    listeners,
    reachable,
)
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.stack import COMPACTORS, Service, words_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def secrets_of(service: Service) -> list[str]:
    """Return the secret of each Spark application."""
    files = sorted(service.stack.state.temporary.glob("neve-spark-*/jvm.options"))
    return [file.read_text().strip().partition("=")[2] for file in files]


def environment_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.environ().values())
    except psutil.Error:
        return ""


def test_every_port_refuses_who_has_no_credentials(service: Service) -> None:
    service.wait("Spark driver of each compactor", service.everybody_beats)
    found = listeners(service.processes())
    with ThreadPoolExecutor(len(found)) as at_once:
        told = at_once.map(lambda listener: kind_that_refuses(listener.port), found)
        kinds = dict(zip(found, told, strict=True))

    assert {listener.host for listener in found} == {"127.0.0.1"}
    counted = Counter(kinds.values())
    assert set(counted) == {"HTTP", "Ray", "Spark", "Py4J", "Python worker", "mute"}
    # Per compactor: RPC and blocks of the driver, RPC of the app master in the driver's JVM, blocks
    # of the executor.
    assert counted["Spark"] == 4 * len(COMPACTORS)
    assert counted["Py4J"] == len(COMPACTORS)
    # Spark's accumulators are served to one client, the driver's JVM, which has come long ago.
    mute = [listener.process for listener, kind in kinds.items() if kind == "mute"]
    assert [process for process in mute if "compactor.spark.child" not in process] == []
    assert len(mute) == len(COMPACTORS)


JOIN = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sorted(ray.cluster_resources()))
"""


def joined(service: Service, **shown: str) -> subprocess.CompletedProcess[str]:
    """Let a program that shows something else than the stack's token, or that one, join Ray."""
    environ = service.stack.driver_environ()
    if shown:
        del environ["RAY_AUTH_TOKEN_PATH"]
    return subprocess.run(
        [sys.executable, "-c", JOIN, service.stack.ray_address],
        env=environ | shown,
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )


def test_ray_lets_in_who_shows_its_token_and_nobody_else(service: Service, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as at_once:
        # A token would be looked for in the home.
        without = at_once.submit(joined, service, RAY_AUTH_MODE="disabled", HOME=str(tmp_path))
        ours = at_once.submit(joined, service)
        ran = without.result()
        assert ran.returncode != 0, ran.stdout
        assert re.search("(?i)authenti|token", ran.stderr), ran.stderr
        assert ours.result().returncode == 0, ours.result().stderr
        assert "neve_node" in ours.result().stdout


def test_the_gcs_answers_the_token_alone(service: Service) -> None:
    port = int(service.stack.ray_address.rpartition(":")[2])
    token = service.stack.folder.ray_token_file.read_text().strip()

    for stranger in ("", "0" * 64):
        assert grpc_code(port, METHODS[0], token=stranger) is grpc.StatusCode.UNAUTHENTICATED
    assert grpc_code(port, METHODS[0], token=token) is grpc.StatusCode.OK


def test_each_application_has_a_secret_that_nothing_shows(service: Service) -> None:
    secrets = secrets_of(service)
    known = {*secrets, service.stack.token}
    known.add(service.stack.folder.ray_token_file.read_text().strip())

    assert len(set(secrets)) >= len(COMPACTORS)
    assert min(map(len, known)) >= 32
    for process in service.processes():
        shown = " ".join(words_of(process))
        assert not [secret for secret in known if secret in shown], shown[:80]
        inherited = environment_of(process)
        assert not [secret for secret in known if secret in inherited], shown[:80]


def test_nobody_else_reaches_what_is_stored(service: Service) -> None:
    folders = [Path(service.stack.state.private_folder), service.stack.folder.path]

    assert reachable(folders) == []


def test_no_worker_waits_for_somebody_else(service: Service) -> None:
    tasks = service.tasks()
    numbers = {process.pid for process in tasks}
    ports = [listener.port for listener in listeners(p for p in tasks if p.ppid() not in numbers)]
    assert len(ports) == len(COMPACTORS)

    def hung_up(port: int) -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
            while link.recv(1024):
                pass  # The number of the worker, which is told first.
        return True

    if os.geteuid() == 0:
        assert as_nobody(lambda: [hung_up(port) for port in ports * 5]) == [True] * len(ports) * 5
