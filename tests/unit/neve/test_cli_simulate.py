"""`neve simulate` and `neve record` from the door: files, JSON, refusals, a running gateway."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.shell import Shell

SPEC = """
[simulation]
days = 0.05
[[table]]
name = "events"
tablets = 3
arrivals = { every = "1m", size = "1MB", size_spread = 0.5 }
[cluster]
group = [{ name = "default", slots = 2, slot_bytes_s = "10MB" }]
"""


@pytest.fixture
def neve(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return str(path)


def test_the_example_can_be_simulated_as_it_is_printed(neve: Shell, tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(neve.run("simulate", "--example").stdout)
    done = neve.run("simulate", str(path), "--days", "0.3", says="VARIANT WRITE SPACE FILES")

    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split("  ")[0] for line in lines[-3:]] == ["ratio 3", "ratio 2", "size-tiered"]


def test_a_seed_gives_the_same_bytes_and_another_one_others(neve: Shell, spec: str) -> None:
    one, same, other = (
        neve.run("simulate", spec, "--seed", seed, "--json").stdout for seed in ("7", "7", "8")
    )
    assert one == same
    assert one != other


def test_results_are_written_to_files(neve: Shell, spec: str, tmp_path: Path) -> None:
    words = ["--csv", "out.csv", "--plots", "plots", "--report", "report.html"]
    words = [str(tmp_path / word) if not word.startswith("--") else word for word in words]
    found = neve.json("simulate", spec, *words)

    (variant,) = found["variants"]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == len(variant["samples"]) + 1
    assert (tmp_path / "plots" / "write-amplification.svg").read_text().startswith("<svg")
    assert "Simulated compaction" in (tmp_path / "report.html").read_text()


def test_planners_are_set_side_by_side(neve: Shell, spec: str) -> None:
    planners = ["ratio", "size-tiered", "leveled", "unified"]
    words = [word for planner in planners for word in ("--planner", planner)]
    found = neve.json("simulate", spec, *words)["variants"]

    assert [each["variant"] for each in found] == planners
    assert len({each["arrived_bytes"] for each in found}) == 1, "the same files come to each"
    assert len({each["write_amplification"] for each in found}) == 4


def test_processes_side_by_side_come_to_the_same(neve: Shell, spec: str) -> None:
    words = ["--planner", "ratio", "--planner", "leveled", "--json"]
    one, two = (neve.run("simulate", spec, *words, "--workers", n).stdout for n in "12")
    assert one == two
    neve.run("simulate", spec, "--workers", "0", code=2, says="--workers")


def test_controllers_are_set_side_by_side(neve: Shell, spec: str) -> None:
    words = ["--controller", "static", "--controller", "control-points"]
    found = neve.json("simulate", spec, *words)["variants"]

    assert [each["variant"] for each in found] == ["static", "control-points"]
    neve.run("simulate", "--from", "a", *words, code=2, says="--controller needs a spec")


def test_what_is_wrong_is_said_in_a_sentence(neve: Shell, spec: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[simulation\n")
    neve.run("simulate", code=2, says="give either a specification or --from")
    neve.run("simulate", spec, "--from", "events", code=2, says="give either")
    neve.run("simulate", spec, "--set", "ratio=2", code=2, says="--set needs --from")
    neve.run("simulate", str(bad), code=2, says="is not TOML")
    neve.run("simulate", str(tmp_path / "none.toml"), code=1, says="cannot be read")
    os.mkfifo(tmp_path / "pipe")
    neve.run("simulate", str(tmp_path / "pipe"), code=1, says="it is not a regular file")
    bad.write_text(SPEC.replace("every", 'recorded = "pipe", every'))
    neve.run("simulate", str(bad), code=1, says="pipe cannot be read: it is not a regular file")
    neve.run(
        "simulate", spec, "--days", "1e9", code=2, says="simulation.days is 1000000000, expected"
    )
    neve.run("simulate", spec, "--seed=-1", code=2, says="simulation.seed is -1")
    neve.run("simulate", spec, "--planner", "rati", code=2, says="'rati' is not installed")
    neve.run("simulate", spec, "--csv", str(tmp_path / "no" / "f"), code=1, says="cannot be used")
    bad.write_text(SPEC.replace("every", 'recorded = "gone.json", every'))
    neve.run("simulate", str(bad), code=1, says="gone.json cannot be read")
    bad.write_text("a = 1\n" * 2)
    neve.run("simulate", str(bad), code=2, says="is not TOML")
    bad.write_bytes(b"\xff\xfe")
    neve.run("simulate", str(bad), code=2, says="is not UTF-8")
    neve.run("record", "events", "--for", "0s", code=2, says="--for is 0s, expected 1s to 30d")


# ------------------------------------------------------------------------------- Of a service


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


def test_a_table_of_a_service_is_simulated_and_recorded(gateway: Gateway, tmp_path: Path) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    location = tmp_path / "sales"
    words = ["--location", str(location), "--key", "id", "--version", "v"]
    neve.run("table", "create", "sales", *words, "--schema", "id:int64,v:int64")
    neve.run("simulate", "--from", "sales", code=2, says="table sales has no files")
    rows = tmp_path / "rows.csv"
    for first in range(12):
        rows.write_text("id,v\n" + "".join(f"{first + at},{first}\n" for at in range(50)))
        neve.run("append", "sales", str(rows))

    found = neve.json("simulate", "--from", "sales", "--planner", "size-tiered", "--days", "0.01")
    present, other = found["variants"]
    assert present["variant"] == "ratio (as it is)"
    assert other["variant"] == "size-tiered"
    assert present["initial_bytes"] == other["initial_bytes"] > 0
    assert present["arrived_files"] >= 12, "what came lately comes again"
    assert present["at_rest"]
    neve.run("simulate", "--from", "none-such", code=2, says="none-such")

    recording = json.loads(neve.run("record", "sales", "--for", "1s").stdout)
    assert recording["table"] == "sales"
    assert recording["arrivals"] == []
    neve.run("table", "drop", "sales", "--yes")


def test_the_specification_of_a_service_is_in_the_report(gateway: Gateway, tmp_path: Path) -> None:
    neve = Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)
    words = ["--location", str(tmp_path / "t"), "--key", "id", "--version", "v"]
    neve.run("table", "create", "stock", *words, "--schema", "id:int64,v:int64")
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,1\n2,1\n")
    neve.run("append", "stock", str(rows))
    report = tmp_path / "report.html"
    neve.run("simulate", "--from", "stock", "--days", "0.01", "--report", str(report))
    neve.run("table", "drop", "stock", "--yes")

    found = re.search(r"<pre>(.*)</pre>", report.read_text(), re.DOTALL)
    assert found is not None
    assert "&quot;slot_bytes_s&quot;" in found[1]
    assert "_neve/append" not in found[1], "files are too many to be read"
