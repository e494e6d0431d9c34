"""Fuzzing in short: every input that is kept, and the first ones of each target.

The long form is `make fuzz`; see docs/reliability.md.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.files import ADD, APPEND, ARROW, BLOCK, FILES, IMPORT, LOOK, STREAMS, FilesTarget
from tests.fuzz.inputs import Target
from tests.fuzz.outcome import DEATH, READ, REFUSED
from tests.fuzz.run import KEPT, SHARES, Run, kept_inputs
from tests.fuzz.stage import Stage
from tests.fuzz.texts import TEXT_TARGETS, verdict

pytestmark = [pytest.mark.integration]

SHORT = {"http": 200, "stored": 12, "archives": 12, **dict.fromkeys(TEXT_TARGETS, 60)}
"""How many inputs each target gets here, those that are kept apart."""
FILE_BLOCKS = 1
KEPT_BYTES_MAX = 300_000


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("fuzz"))
    with made.open():
        yield made
    assert made.outcome.violations == [], "of memory: the others were looked at before"


@pytest.fixture(scope="module")
def run(stage: Stage) -> Run:
    return Run(stage)


def test_damaged_files_and_streams_end_no_service(run: Run, stage: Stage) -> None:
    target = run.target("files")
    assert isinstance(target, FilesTarget)
    target.check_bases()
    for number in range(FILE_BLOCKS):
        target.run_block(number)

    outcome = stage.outcome
    assert outcome.violations == []
    for way, each in {APPEND: STREAMS, ADD: FILES, LOOK: FILES, ARROW: 1}.items():
        assert outcome.of(way) == FILE_BLOCKS * each, outcome.counts
    assert 0 < outcome.of(APPEND, READ) < outcome.of(APPEND, REFUSED)
    assert outcome.of(IMPORT, READ) >= FILE_BLOCKS, "the sound one beside them"
    assert outcome.peaks["gateway"] > 0


def test_a_seed_is_the_same_input_whenever_it_is_given(run: Run, stage: Stage) -> None:
    before = stage.outcome.of(ADD)
    run.target("files").run_block(FILE_BLOCKS, only=FILE_BLOCKS * BLOCK + STREAMS)

    assert stage.outcome.violations == []
    assert stage.outcome.of(ADD) == before + 1


@pytest.mark.parametrize("name", [name for name in SHARES if name != "files"])
def test_hostile_inputs_end_no_service(run: Run, stage: Stage, name: str) -> None:
    target, outcome = run.target(name), stage.outcome
    assert isinstance(target, Target)
    target.run_first(SHORT[name])

    assert outcome.violations == []
    assert outcome.of(name) == SHORT[name]
    assert outcome.of(name, REFUSED) > 0, "hostile ones"
    assert outcome.of(name, READ) > 0, "nearly sound ones"


@pytest.mark.parametrize("name", SHARES)
def test_an_input_that_has_found_something_finds_nothing_any_more(
    run: Run, stage: Stage, name: str
) -> None:
    assert run.kept(name) > 0
    assert stage.outcome.violations == []


def test_each_input_that_is_kept_says_what_it_is_about() -> None:
    told = (KEPT / "README.md").read_text("utf-8")
    kept = [f"{name}/{kept_input}" for name in SHARES for kept_input in kept_inputs(name)]

    assert [each for each in kept if f"| `{each}` | " not in told] == []
    assert sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file()) < KEPT_BYTES_MAX


# -------------------------------------------------------------- The harness finds faults


def test_a_death_and_too_much_memory_are_noticed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, roles=("texts",))
    with stage.open():
        died = stage.pids()["texts"]
        os.kill(died, signal.SIGKILL)
        answer = stage.read_text("FUZZ_SEED=1", "keys", b"0\n1")
        again = stage.read_text("FUZZ_SEED=2", "keys", b"0\n1")
        assert stage.pids()["texts"] != died
        stage.outcome.limits["texts"] = 1

    assert answer["end"] == "fault"
    assert again["end"] in {READ, REFUSED}
    death, memory = stage.outcome.violations
    assert death == f"FUZZ_SEED=1 (keys): the texts {DEATH} with -9"
    assert memory.startswith("memory of the texts: ")


def test_an_error_that_is_none_of_ours_is_a_fault() -> None:
    assert verdict("documents", b"0\n{}")["end"] == REFUSED
    assert verdict("no such target", b"")["end"] == "fault"
