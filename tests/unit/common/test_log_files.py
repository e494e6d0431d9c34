"""Log files are bounded whoever writes them, and nothing is renamed under a writer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.log_files import STDERR, LogFiles, newest_first, put_aside, send_to
from common.settings import LogSettings

pytestmark = pytest.mark.unit

BOUND = 64 * 1024


def files_in(folder: Path, kept: int = 2) -> LogFiles:
    return LogFiles.of(str(folder), LogSettings(file_bytes_max=BOUND, files_kept=kept))


def test_a_large_file_is_put_aside_and_its_writer_goes_on_in_the_empty_one(tmp_path: Path) -> None:
    logs = files_in(tmp_path)
    path = logs.path("gateway")
    with path.open("ab", buffering=0) as writer:
        for letter in (b"a", b"b", b"c", b"d"):
            writer.write(letter * (BOUND + 1))
            logs.rotate(["gateway"])
        writer.write(b"e")
    assert path.read_bytes() == b"e"
    aside = [path.with_name(f"gateway.log.{number}").read_bytes()[:1] for number in (1, 2)]
    assert aside == [b"d", b"c"]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "gateway.log",
        "gateway.log.1",
        "gateway.log.2",
    ]


def test_a_small_file_and_one_of_another_part_stay(tmp_path: Path) -> None:
    logs = files_in(tmp_path)
    logs.path("gateway").write_bytes(b"x" * BOUND)
    logs.path("redis").write_bytes(b"x" * (BOUND + 1))
    logs.rotate(["gateway", "absent"])
    assert logs.path("gateway").stat().st_size == BOUND
    assert logs.path("redis").stat().st_size == BOUND + 1


def test_with_no_bytes_allowed_a_log_is_emptied_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x")
    put_aside(path, 0)
    assert (path.read_bytes(), [each.name for each in tmp_path.iterdir()]) == (b"", ["a.log"])


def test_a_part_of_many_processes_keeps_the_newest_files(tmp_path: Path) -> None:
    logs = files_in(tmp_path, kept=1)
    folder = tmp_path / "executor-a"
    (folder / "events").mkdir(parents=True)
    for number in range(6):
        path = folder / "events" / f"{number}.log" if number % 2 else folder / f"{number}.log"
        path.write_bytes(b"x" * (BOUND // 2))
        os.utime(path, (number, number))
    logs.rotate(["executor-a"])
    assert [path.name for path in newest_first(folder)] == ["5.log", "4.log", "3.log", "2.log"]


def test_crashes_of_a_jvm_do_not_fill_the_disk(tmp_path: Path) -> None:
    for number in range(9):
        path = tmp_path / f"hs_err_pid{number}.log"
        path.write_bytes(b"x")
        os.utime(path, (number, number))
    files_in(tmp_path).rotate(["gateway"])
    assert [path.name for path in newest_first(tmp_path)][-1] == "hs_err_pid4.log"


def test_all_output_of_a_process_goes_to_the_log_of_its_part(tmp_path: Path) -> None:
    code = (
        "import os, sys; from common.log_files import LogFiles; from common.settings import *;"
        "from common.telemetry import event_log; log = event_log('gateway');"
        "LogFiles.of(sys.argv[1], LogSettings()).take_output('gateway');"
        "log('begins', port=1); os.write(1, b'from C\\n'); raise RuntimeError('the end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "logs")], capture_output=True, check=False
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    path = tmp_path / "logs" / "gateway.log"
    text = path.read_text()
    assert '"event": "begins"' in text
    assert "from C\n" in text
    assert "RuntimeError: the end" in text
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_folder_everything_stays_where_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    logs = LogFiles.of("", LogSettings())
    logs.take_output("gateway")
    logs.rotate(["gateway"])
    asyncio.run(logs.rotate_forever(["gateway"]))
    os.write(STDERR, b"here")
    assert capfd.readouterr().err == "here"


def test_a_descriptor_is_sent_to_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.log"
    path.write_bytes(b"before ")
    descriptor = os.open(os.devnull, os.O_WRONLY)
    send_to(path, descriptor)
    os.write(descriptor, b"after")
    os.close(descriptor)
    assert path.read_bytes() == b"before after"
