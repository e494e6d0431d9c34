"""One settings file, the environment and flags make a service: each value reaches its process.

The planner is the example of `docs/plugins.md`, installed as a package of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from neve.api import Finished
from neve.local import LocalStack
from neve.local.stack import stop_stack
from neve.local.stack_folder import StackFolder
from tests.support.installed import installation
from tests.support.page_cache import resident_bytes
from tests.support.patience import PATIENCE_S, SERVICE_S
from tests.support.plugin_package import install, settings_file
from tests.support.stack import Service, words_of

pytestmark = [pytest.mark.slow]

NAME = "file"
MORE_SETTINGS = """
[coordinator]
volume_running_max = 1
volume_limit_bytes_s = "2MB"
volume_least_bytes_s = "256KB"
volume_latency_s = 0.0001
backoff_base_s = 0.5
queue_count_max = 8
overload_after_s = 2

[compactor]
slots = 1
executor_cores = 1
executor_memory = "512m"
beat_interval_s = 0.3

[gateway]
token = "of-the-file"
body_bytes_max = "64MB"

[log]
file_bytes_max = "64KB"
level = "warning"

[control]
controller = "control-points"
options = ["static_shares=900"]
bytes_s_max = "200MB"
foreground_limit_s = "500ms"

[services.night]
groups = [{ group = "night" }]
"""
"""What the page's file leaves out; every write is slower than the latency that is allowed."""
ENVIRON = {
    "NEVE_COMPACTOR_BEAT_INTERVAL_S": "0.5",
    "NEVE_COMPACTOR_PAGE_CACHE": "drop",
    "NEVE_GROUPS_SMALL_SLOTS": "2",
    "NEVE_GROUPS_SMALL_URGENT_SLOTS": "1",
    "NEVE_GROUPS_LARGE_EXECUTORS": "2",
}
FLAGS = ["--set", "gateway.token=of-the-flag", "--set", "coordinator.tick_s=0.2", "--port", "0"]
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LIMIT_BYTES_S = 2 * 1024**2
SPLITS = ["100", "200", "300"]
MANY_SPLITS = [str(number) for number in range(40, 400, 40)]
"""More tablets than a queue has places."""
TABLES, FILES = 2, 3
SLOW = "64KB"
"""Per second: the lowest limit, with which a job takes half a minute."""


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs `neve` as a user does, in a process of its own."""

    environ: dict[str, str]

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [installation().neve, *words]
        done = subprocess.run(
            command,
            env=self.environ,
            cwd=Path.home(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell whose stack runs from the settings file."""
    folder = tmp_path_factory.mktemp("settings-file")
    install(folder / "plugins")
    file = folder / "neve.toml"
    file.write_text(settings_file() + MORE_SETTINGS)
    clean = {name: each for name, each in os.environ.items() if not name.startswith("NEVE_")}
    own = {"NEVE_HOME": str(folder / "home"), "PYTHONPATH": str(folder / "plugins"), **ENVIRON}
    shell = Shell(installation().environ(clean | own))
    shell.run("config", "check", str(file), *FLAGS[:4])
    try:
        shell.run("up", "--stack", NAME, "--config", str(file), *FLAGS)
        yield shell
    finally:
        stop_stack(StackFolder.of(folder / "home", NAME, {}), delete_data=True)


@pytest.fixture(scope="module")
def service(shell: Shell) -> Service:
    home = Path(shell.environ["NEVE_HOME"])
    stack = LocalStack.attach(home=home, name=NAME)
    assert stack is not None
    return Service(stack, home.parent, compactors=2)


def rows(count: int, seed: int, *, first: int = 0) -> pa.Table:
    """Return rows of which each has 1,000 bytes that do not compress."""
    chance = np.random.default_rng(seed)
    texts = [chance.bytes(750).hex()[:1000] for _ in range(count)]
    return pa.table({"n": np.arange(first, first + count), "text": texts}, schema=SCHEMA)


def fill(
    service: Service,
    name: str,
    volume: str,
    *parts: pa.Table,
    key: bool = True,
    splits: Sequence[str] = SPLITS,
) -> None:
    """Create a paused table on a volume, and append each part by itself."""
    client = service.client
    more: dict[str, Any] = {"key": ["n"], "splits": splits} if key else {}
    client.create_table(
        name,
        (service.folder / name).as_uri(),
        schema=pa.schema([*SCHEMA, ("v", pa.int64())]),
        version_column="v" if key else None,
        settings={"volume": volume},
        paused=True,
        **more,
    )
    for number, part in enumerate(parts):
        version = pa.array(np.full(part.num_rows, number))
        client.append(name, part.append_column("v", version))


def commits(service: Service, *tables: str) -> list[Finished]:
    """Return the committed attempts of some tables, the first begun first."""
    found = [each for name in tables for each in service.client.history(name)]
    assert {each.end for each in found} == {"committed"}, found
    return sorted(found, key=lambda each: each.started_s)


def test_every_value_names_its_source(shell: Shell) -> None:
    shown = {each["name"]: each for each in shell.json("config", "show")["settings"]}

    def source(name: str) -> str:
        return str(shown[name]["source"]).split("/")[0]

    assert source("coordinator.volume_running_max") == "file "
    assert source("services.default.planner") == source("groups.large.compactors") == "file "
    assert source("compactor.beat_interval_s") == (
        "environment variable NEVE_COMPACTOR_BEAT_INTERVAL_S"
    )
    assert source("coordinator.tick_s") == "flag --set coordinator.tick_s"
    assert source("gateway.port") == "flag --port"
    assert source("store.url_file") == source("gateway.token_file") == "this stack"
    assert source("coordinator.full_scan_tasks") == "default"
    assert shown["compactor.beat_interval_s"]["value"] == 0.5
    assert shown["services.default.options.small_bytes"]["value"] == str(16 * 1024**2)
    assert "of-the-flag" not in json.dumps(shown)


def test_the_token_of_the_strongest_source_counts(shell: Shell, service: Service) -> None:
    assert service.stack.token == "of-the-flag"
    refused = shell.run("status", "--token", "of-the-file", code=2)
    assert "the bearer token is missing or wrong" in refused.stderr


def test_each_group_has_compactors_of_its_own(service: Service) -> None:
    service.wait("two compactors", lambda: len(service.client.compactors()) == 2)
    found = {
        compactor.compactor: (compactor.group, compactor.slots)
        for compactor in service.client.compactors()
    }
    assert found == {"small-1": ("small", 2), "large-1": ("large", 1)}
    actors = [words_of(process) for process in service.processes()]
    executors = [words for words in actors if "io.ray.runtime.runner.worker.DefaultWorker" in words]
    # One executor for the small compactor and two for the large one.
    assert len(executors) == 1 + 2
    assert all("-Xmx512M" in words for words in executors if "-Xmx512M" in words or "-Xms" in words)


def test_two_jobs_of_one_volume_never_run_at_the_same_time(service: Service) -> None:
    names = [f"shared-{number}" for number in range(TABLES)]
    for name in names:
        fill(service, name, "shared", *(rows(400, seed) for seed in range(FILES)))
    for name in names:
        service.client.resume(name)
    for name in names:
        service.client.wait_until_at_rest(name, timeout_s=SERVICE_S)
    done = commits(service, *names)
    assert len(done) == TABLES * (len(SPLITS) + 1)
    assert {(each.group, each.compactor) for each in done} == {("small", "small-1")}
    assert all(before.ended_s <= after.started_s for before, after in pairwise(done)), done
    assert all(f"files are smaller than {16 * 1024**2} bytes" in each.reason for each in done)


def test_large_jobs_go_to_the_large_group_under_the_limit_of_their_volume(
    service: Service,
) -> None:
    fill(service, "large", "slow", *(rows(3000, seed) for seed in range(FILES)), key=False)
    service.client.resume("large")

    service.client.wait_until_at_rest("large", timeout_s=SERVICE_S)
    done = commits(service, "large")
    assert {(each.group, each.compactor) for each in done} == {("large", "large-1")}
    # What stays after a job is compared: how long it waits depends on the machine.
    (limit,) = [limit for limit in service.client.limits() if limit.name == "slow"]
    assert limit.limit_bytes_s == LIMIT_BYTES_S
    moved = sum(job.bytes_in + job.bytes_out for job in done)
    assert 0.9 * moved <= limit.moved_bytes <= moved
    took_s = done[-1].ended_s - done[0].started_s
    assert moved <= 1.02 * LIMIT_BYTES_S * took_s
    (file,) = service.client.files("large")
    folder = service.folder / "large"
    assert resident_bytes(folder / file.path) == 0, "readers keep what they had in memory"
    assert service.client.scan("large").num_rows == FILES * 3000
    assert resident_bytes(folder / file.path) > 0


def test_a_request_is_done_though_the_planner_wants_none_of_its_files(service: Service) -> None:
    client = service.client
    fill(service, "wished", "other", rows(20, 1), rows(20, 2, first=10))
    client.resume("wished")
    client.wait_until_at_rest("wished", timeout_s=SERVICE_S)
    # What is left is one small file per tablet, and the planner wants two at least.
    wish = client.compact("wished", set="text = upper(text)")
    assert wish.wait(timeout_s=SERVICE_S).state == "done"
    found = client.scan("wished").column("text").to_pylist()
    assert len(found) == 30
    assert all(text == text.upper() for text in found)
    (done,) = [commit for commit in commits(service, "wished") if commit.kind == "USER"]
    assert "planner small-files takes no file of the request" in done.reason


def test_urgent_work_begins_though_ordinary_work_has_all_other_slots(service: Service) -> None:
    """The group has two slots, one of which is kept; all tables are on volumes of their own."""
    client = service.client
    ordinary = [f"ordinary-{number}" for number in range(2)]
    for name in ordinary:
        fill(service, name, name, *(rows(600, seed) for seed in range(FILES)), splits=())
    fill(service, "hasty", "hasty", rows(20, 1), splits=())
    for name in ordinary:
        client.limit_volume(name, SLOW)  # Their jobs last until the urgent one has ended.
    for name in [*ordinary, "hasty"]:
        client.resume(name)

    def waits() -> str:
        queued = [each.table for each in client.queue("small") if each.table in ordinary]
        running = [job.table for job in client.jobs() if job.table in ordinary]
        return queued[0] if len(queued) == len(running) == 1 else ""

    waiting = service.wait("an ordinary job that waits for another one", waits)
    kept = "the free slots of the group are reserved for urgent jobs"
    assert any(kept in sentence for sentence in client.explain(waiting)[0].sentences)
    wish = client.compact("hasty", set="text = upper(text)", boost=20_000)
    assert wish.wait(timeout_s=SERVICE_S).state == "done"
    for name in ordinary:
        client.limit_volume(name, None)
    for each in [*ordinary, "hasty"]:
        client.wait_until_at_rest(each, timeout_s=SERVICE_S)
    first, second = commits(service, *ordinary)
    (urgent,) = commits(service, "hasty")
    assert {each.group for each in (first, second, urgent)} == {"small"}
    assert first.ended_s <= second.started_s, "ordinary work never had both slots"
    assert first.started_s < urgent.started_s < second.ended_s, "urgent work had the other one"


def test_the_controller_of_the_file_decides_and_listens_to_readers(
    shell: Shell, service: Service
) -> None:
    found = shell.json("control")
    assert found["controller"] == "control-points"
    assert found["reasons"][0] == "static_shares holds 900 shares"
    assert (found["slots"], found["slots_max"]) == (3, 3)
    classes = {each["name"]: each for each in found["classes"]}
    assert classes["system"]["shares"] == 900
    assert classes["system"]["total_bytes"] > 0
    assert classes["user"]["total_bytes"] > 0
    assert found["bytes_s"] == 180 * 1024**2
    (limit,) = [each for each in service.client.limits() if each.kind == "control"]
    assert limit.rate_bytes_s == found["bytes_s"]

    def lowered() -> bool:
        service.client.report_latency("wished", 5.0, reads=100)
        return bool((service.client.control().bytes_s or 0) < 100 * 1024**2)

    service.wait("a lower rate", lowered)
    told = " ".join(shell.run("control").stdout.split())
    assert "longer than 500 ms" in told
    assert "never below" in told
    token = {"Authorization": f"Bearer {service.stack.token}"}
    series = httpx.get(f"{service.stack.gateway_url}/metrics", headers=token).text.splitlines()
    assert 'neve_control_shares{class="system"} 900.0' in series
    (rate,) = [
        one_series
        for one_series in series
        if one_series.startswith("neve_control_bytes_per_second ")
    ]
    assert float(rate.split()[1]) < 180 * 1024**2
    (wait,) = [
        one_series
        for one_series in series
        if one_series.startswith("neve_control_reader_wait_seconds ")
    ]
    assert float(wait.split()[1]) > 0.5


def test_a_setting_that_no_planner_of_a_service_reads_has_no_effect(
    shell: Shell, service: Service
) -> None:
    fill(service, "described", "other")
    told = shell.json("table", "describe", "described")["without_effect"]
    assert told.keys() == {"target_bytes"}, "the service `night` uses the planner `ratio`"
    assert "(ratio, small-files)" in told["target_bytes"]


def test_a_group_that_nobody_serves_is_said_wherever_somebody_asks(
    shell: Shell, service: Service
) -> None:
    parts = [rows(400, seed) for seed in range(FILES)]
    fill(service, "nightly", "other", *parts, splits=MANY_SPLITS)
    shell.run("table", "set", "nightly", "service=night", "ratio=1.5")
    shell.run("resume", "nightly")
    waits = "group night has no compactor: its 8 jobs wait; start one with groups.night.compactors"

    def explained() -> bool:
        told = service.client.explain("nightly")
        return any(waits in sentence for each in told for sentence in each.sentences)

    service.wait("the explanation", explained)
    assert waits in " ".join(shell.run("status").stdout.split())
    assert waits in shell.run("doctor", code=1).stdout

    def overloaded() -> bool:
        return any(group.overloaded for group in service.client.groups())

    service.wait("an overloaded group", overloaded)
    told = " ".join(shell.run("status").stdout.split())
    assert "group night is overloaded: its queue (8 jobs) has been full for" in told
    assert "more tablets wait for room (2)" in told
    check_backlog(shell, service)
    shell.run("table", "drop", "nightly", "--yes")
    service.wait("no backlog", lambda: not service.client.backlog())


def check_backlog(shell: Shell, service: Service) -> None:
    """Look at what `nightly` owes, as a table, by tablet and by group."""
    (owed,) = service.client.backlog("nightly")
    assert (owed.strategy, owed.tablets) == ("ratio", len(MANY_SPLITS) + 1)
    assert owed.size_bytes == sum(file.size_bytes for file in service.client.files("nightly"))
    assert owed.groups == {"night": owed.size_bytes}
    assert "nightly" in shell.run("backlog").stdout
    tablets = shell.json("backlog", "nightly", "--tablets")
    sizes = [tablet["size_bytes"] for tablet in tablets]
    assert sum(sizes) == owed.size_bytes
    assert sizes == sorted(sizes, reverse=True)
    assert {tablet["group"] for tablet in tablets} == {"night"}
    series = f'neve_backlog_bytes{{table="nightly"}} {float(owed.size_bytes)}'
    token = {"Authorization": f"Bearer {service.stack.token}"}
    told = httpx.get(f"{service.stack.gateway_url}/metrics", headers=token).text
    assert series in told
    assert f'neve_backlog_group_bytes{{group="night"}} {float(owed.size_bytes)}' in told

    def past() -> set[float | None]:
        series = service.client.series(tables=["nightly"], measures=["backlog_bytes"])
        return set(series.tables[0].values["backlog_bytes"])

    service.wait("a sample", lambda: owed.size_bytes in past())

    def recorded() -> dict[str, list[int]]:
        histories = shell.json("backlog", "nightly", "--tablets", "--history", "--count", "2")
        return {
            tablet["tablet"]: [point["size_bytes"] for point in tablet["history"]]
            for tablet in histories
        }

    largest = {tablet["tablet"]: tablet["size_bytes"] for tablet in tablets[:2]}
    assert {tablet: history[0] for tablet, history in recorded().items()} == largest
    service.wait("a second point", lambda: all(len(sizes) > 1 for sizes in recorded().values()))


def test_another_start_says_what_it_does_not_apply(shell: Shell) -> None:
    refused = shell.run("up", "--stack", NAME, "--set", "compactor.slots=7", code=3)
    assert "is already running at http://127.0.0.1:" in refused.stderr
    assert "compactor.slots = 7 (flag --set compactor.slots), running with 1" in refused.stderr
    assert "services.default.planner = ratio (default), running with small-files" in refused.stderr


def test_every_part_has_a_log_that_is_kept(shell: Shell, service: Service) -> None:
    """The last test: it kills a compactor and ends the stack, before another Spark is there."""
    folder = service.stack.folder
    with folder.logs.joinpath("redis.log").open("a") as log:
        log.write("x" * 70_000)
    aside = folder.logs / "redis.log.1"
    service.wait("a log put aside", aside.exists, within_s=PATIENCE_S)
    service.kill(service.compactor("small-1"))
    service.wait(
        "the death in the log", lambda: service.events("compactor gone"), within_s=PATIENCE_S
    )
    parts = shell.json("logs")
    assert parts.keys() >= {
        *("start", "redis", "ray", "coordinator", "gateway"),
        *(f"{what}-{name}-1" for name in ("small", "large") for what in ("compactor", "driver")),
        *("executor-small-1", "executor-large-1"),
    }
    events = [json.loads(line) for line in shell.json("logs", "coordinator")["lines"]]
    assert {event["part"] for event in events} == {"coordinator"}
    assert "info" not in {event["level"] for event in events}
    assert "stack file ended" in shell.run("down").stdout
    assert "compactor gone" in shell.run("logs", "coordinator").stdout
    assert shell.json("logs", "ray")["lines"]
    shell.run("down", "--stack", NAME, "--delete-data")
    assert not folder.path.exists()
