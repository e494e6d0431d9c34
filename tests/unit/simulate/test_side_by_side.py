"""Variants in processes of their own: the same results, and none is left over."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import ConfigError, PluginError
from neve.simulate.report import as_document
from neve.simulate.side_by_side import simulated, workers_for
from neve.simulate.specification import Specification, read_specifications
from tests.support.simulated import document

PLANNERS = ["ratio", "size-tiered", "leveled"]
LONG = document({"tablets": 20, "arrivals": {"every": "1s"}}, simulation={"days": 5})


def variants(**sections: object) -> list[Specification]:
    return read_specifications(document(**sections), lambda name: name, PLANNERS)  # type: ignore[arg-type]  # sections


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    heard: dict[int, list[float]] = {0: [], 1: [], 2: []}
    apart = simulated(variants(), 2, lambda at, now_s: heard[at].append(now_s))
    alone = simulated(variants(), 1)

    assert json.dumps(as_document(apart)) == json.dumps(as_document(alone))
    assert [each.variant for each in apart] == PLANNERS
    for at, each in enumerate(apart):
        assert heard[at][-1] == each.length_s
        assert heard[at] == sorted(heard[at])
    assert not multiprocessing.active_children()


def test_a_core_each_where_much_is_simulated() -> None:
    assert workers_for(variants()) == 1
    assert workers_for(read_specifications(LONG, lambda name: name)) == os.cpu_count()


def test_a_process_that_dies_is_named_and_the_others_end() -> None:
    runs = read_specifications(LONG, lambda name: name, PLANNERS)

    def kill(at: int, _now_s: float) -> None:
        if at == 1:
            (victim,) = [
                active_child
                for active_child in multiprocessing.active_children()
                if active_child.name == "size-tiered"
            ]
            victim.kill()

    with pytest.raises(ConfigError, match=r"variant size-tiered: .* ended by SIGKILL .* --workers"):
        simulated(runs, 2, kill)
    assert not multiprocessing.active_children()


def test_what_fails_in_a_process_is_raised_here() -> None:
    runs = read_specifications(document(), lambda name: name, ["ratio"])
    broken = read_specifications(document(), lambda name: name)
    object.__setattr__(broken[0].tables[0], "planner", Broken())
    with pytest.raises(PluginError, match="ValueError: this planner is broken"):
        simulated([*runs, *broken], 2)
    object.__setattr__(broken[0].tables[0], "planner", lambda: None)
    with pytest.raises(PluginError, match=r"cannot be sent to another process.*--workers 1"):
        simulated([*runs, *broken], 2)
    assert not multiprocessing.active_children()


class Broken:
    """A planner that cannot plan."""

    def plan(self, _parameters: object) -> object:
        raise ValueError("this planner is broken")


def test_ctrl_c_ends_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text(
        '[simulation]\ndays = 5\n[[table]]\nname = "events"\ntablets = 20\n'
        'arrivals = { every = "1s" }\n'
    )
    words = ["simulate", str(path), "--planner", "ratio", "--planner", "leveled", "--workers", "2"]
    command = [sys.executable, "-c", "from neve.cli.app import main; main()", *words]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_simulations(process.pid)
        assert all(map(has_blocked_interrupts, simulations_of(process.pid)))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert said.strip() == "interrupted"
    assert not simulations_of(process.pid)


def wait_for_simulations(group: int) -> None:
    deadline_s = time.monotonic() + 60
    while sum(map(has_worked, simulations_of(group))) < 2:
        assert time.monotonic() < deadline_s, "no simulation began"
        time.sleep(0.05)


def has_worked(process: int) -> bool:
    """Return whether a process has run for a while: an interpreter that starts ends otherwise."""
    ticks = (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) > os.sysconf("SC_CLK_TCK") / 2


def has_blocked_interrupts(process: int) -> bool:
    status = (Path("/proc") / str(process) / "status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (signal.SIGINT - 1) & 1)


def simulations_of(group: int) -> list[int]:
    """Return the processes of a group that simulate: spawned ones, without who tracks them."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
                of_group = os.getpgid(int(entry.name)) == group
            except OSError:
                continue  # It has ended meanwhile.
            if of_group and b"spawn_main" in command:
                found.append(int(entry.name))
    return found
