"""`neve serve` on a Ray cluster and a Redis that run already: from nothing to compacted and back.

The cluster is the bare half of a local stack; the service on it is started, watched, replaced and
taken down by the command alone. Compactors come and go with the work; their Spark has no executors,
which other tests of this package start.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from common.wire import COORDINATOR_NAME, GATEWAY_NAME, compactor_actor_name
from neve.api import Group, GroupScaling
from neve.client import Client
from neve.client.errors import NeveError
from neve.local import LocalStack
from tests.support.installed import installation
from tests.support.module_origins import folders_of_actors
from tests.support.patience import SERVICE_S
from tests.support.process_memory import held_in_memory
from tests.support.serving import TOKEN, Cluster

pytestmark = [pytest.mark.slow]

SETTINGS = """
[coordinator]
tick_s = 0.2
full_scan_interval_s = 5
[compactor]
slots = 1
engine = "local"
driver_memory = "512m"
beat_interval_s = 0.5
[autoscaler]
grow_after_s = 1
shrink_after_s = 10
shrink_interval_s = 2
[groups.default]
compactors = { min = 0, max = 2 }
[gateway]
locations = ["/"]
"""
CHANGED = SETTINGS.replace("max = 2", "max = 1")


@pytest.fixture(scope="module")
def cluster(emptied: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(emptied, tmp_path_factory.mktemp("serve"), SETTINGS)


def wait_until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + SERVICE_S
    while not true():
        assert time.monotonic() < end_s, "what was waited for did not come"
        time.sleep(0.2)


def default_group(client: Client) -> tuple[Group, GroupScaling]:
    (group,) = client.groups()
    assert group.scaling is not None
    return group, group.scaling


def append_versions(client: Client, table: str, appends: int) -> None:
    for number in range(appends):
        ids = list(range(number, 500 + number))
        client.append(table, pa.table({"id": ids, "at": [number] * len(ids)}))


def test_compactors_come_with_the_work_and_go_after_it(cluster: Cluster) -> None:
    with cluster.serving() as serving:
        client = serving.client
        assert serving.probe("/live") == serving.probe("/ready") == 200
        (head,) = [process for process in cluster.state().processes if process.role == "gcs_server"]
        password = cluster.state().redis_url.partition("unix://:")[2].partition("@")[0]
        texts = {"token": TOKEN, "password": password, "argument": str(cluster.folder / "url")}
        assert held_in_memory(head.pid, texts) == {"argument"}, "Ray's head knows no secret"
        group, scaling = default_group(client)
        assert (group.compactors, scaling.least, scaling.most) == (0, 0, 2)

        location = cluster.folder / "users"
        location.mkdir()
        schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
        client.create_table("users", str(location), schema=schema, key=["id"], version_column="at")
        append_versions(client, "users", 12)
        client.wait_until_at_rest("users", timeout_s=SERVICE_S)
        assert client.status().committed >= 1
        assert client.scan("users").num_rows == 511

        wait_until(lambda: not default_group(client)[0].compactors)
        wait_until(lambda: not client.compactors())
        group, scaling = default_group(client)
        started = [name for decision in scaling.decisions for name in decision.started]
        drained = [name for decision in scaling.decisions for name in decision.drained]
        assert "default-1" in started
        assert sorted(started) == sorted(drained)
        assert (scaling.desired, scaling.starts_failed, group.queued) == (0, 0, 0)
        assert serving.end() == 0
    assert client.status().tables == 1, "SIGTERM leaves the service running"


def test_what_is_gone_is_started_and_the_newest_settings_win(cluster: Cluster) -> None:
    # A second one may watch the same service.
    with cluster.serving() as first, cluster.serving() as second:
        assert first.said["url"] == second.said["url"]
        before = first.client.status().coordinator
        cluster.kill_for_good("neve-coordinator")
        wait_until(lambda: _coordinator(first.client) not in (None, before))
        wait_until(lambda: first.probe("/ready") == 200)
        assert '"event": "part is started", "up": "coordinator"' in first.log.read_text()
        before = _coordinator(first.client)
        assert (first.end(signal.SIGINT), second.end()) == (0, 0)
    check_newer_settings(cluster, before)


def _coordinator(client: Client) -> str | None:
    try:
        return client.status().coordinator
    except NeveError:
        return None


def check_newer_settings(cluster: Cluster, before: str | None) -> None:
    """Replace a service by one with other settings; a number set by hand holds."""
    with cluster.serving(settings=CHANGED) as serving:
        client = serving.client
        assert client.status().coordinator != before
        assert default_group(client)[1].most == 1
        client.scale_group("default", 1)
        wait_until(lambda: any(compactor.ready for compactor in client.compactors()))
        origins = folders_of_actors(cluster.stack.ray_address, cluster.environ())
        assert {COORDINATOR_NAME, GATEWAY_NAME, compactor_actor_name("default-1")} <= set(origins)
        wheel = [str(installation().packages)]
        assert all(folders == wheel for folders in origins.values()), origins
        client.stop_compactor("default-1", 0.0)
        wait_until(lambda: "default-2" in _names(client))
        wait_until(lambda: _names(client) == {"default-2"})
        assert serving.end() == 0


def _names(client: Client) -> set[str]:
    return {compactor.compactor for compactor in client.compactors() if compactor.ready}


def test_with_service_takes_it_down_and_the_tables_stay(cluster: Cluster) -> None:
    with cluster.serving("--with-service", settings=CHANGED) as serving:
        client = serving.client
        assert _names(client) == {"default-2"}
        assert default_group(client)[1].set_to == 1
        client.scale_group("default", None)
        assert serving.end() == 0
    with pytest.raises(NeveError):
        client.status()
    assert "address already in use" in reason_with_port_in_use(cluster)
    with cluster.serving("--with-service", settings=CHANGED) as serving:
        assert [table.name for table in serving.client.tables()] == ["users"]
        assert default_group(serving.client)[1].set_to is None
        assert serving.end() == 0


def reason_with_port_in_use(cluster: Cluster) -> str:
    """Return why `neve serve` waits for the gateway while another program has its port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with subprocess.Popen(
            cluster.command("--with-service", settings=CHANGED),
            env={**cluster.environ(), "NEVE_GATEWAY_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            said = (json.loads(line) for line in process.stdout)
            found = (each["text"] for each in said if each["step"] == "waits")
            reason = next((each for each in found if "does not come up" in each), "it has ended")
            process.terminate()
            process.communicate(timeout=SERVICE_S)
    return reason


def refusal(cluster: Cluster, **environ: str) -> str:
    """Return what `neve serve` says when its store does not answer."""
    usual = {k: v for k, v in cluster.environ().items() if k.removesuffix("_FILE") not in environ}
    done = subprocess.run(
        cluster.command("--wait", "0s"),
        env={**usual, **environ},
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return re.sub(r"\s+", " ", done.stderr)


def test_a_store_that_is_not_there_is_named(cluster: Cluster) -> None:
    assert "setting store.url" in refusal(cluster, NEVE_STORE_URL="redis://127.0.0.1:1/0")
