"""Plug-ins of a package of its own: what is merged stands in a script, when is a test's choice.

`install` lays them out as an installed package does, so that a stack finds them through
the door that everybody's plug-ins use. A gate is a file: what waits at it goes on as
soon as the file is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.model.file import DataFile
from common.model.job import Kind, Plan, PlannedJob, job_priority
from common.model.key_values import KeyType
from common.model.keys import decode_key
from common.model.request import OutputSpec
from common.spi.planner import Chosen, OutputParameters, PlanParameters, SelectorParameters

Span = tuple[int, int]
"""The first and the last key of a file. A script names files so: who knows paths of outputs?"""
Script = Mapping[str, tuple[tuple[Span, ...], ...]]
"""Kind → jobs, each the spans of its inputs."""

GATE_MAX_S = 100.0
ENTRY_POINTS = """\
[neve.planners]
scripted = tests.support.scripted:ScriptedPlanner
[neve.configurers]
gated = tests.support.scripted:GatedConfigurer
[neve.selectors]
gated = tests.support.scripted:GatedSelector
"""


def install(folder: Path) -> dict[str, str]:
    """Install the plug-ins below a folder.

    Returns:
        The environment in which they are found.
    """
    info = folder / "scripted-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def span_of(files: Iterable[DataFile]) -> Span:
    """Return the first and the last key of some files of a table with one integer as its key."""
    keys = [key for file in files for key in (file.key_min, file.key_max) if key is not None]
    found = [decode_key(key, (KeyType.INT,))[0] for key in (min(keys), max(keys))]
    first, last = found
    assert isinstance(first, int), first
    assert isinstance(last, int), last
    return first, last


def gate_of(kind: str, span: Span) -> str:
    """Return the name of the gate of a job: its kind, and the keys of all its inputs."""
    return f"{kind}-{span[0]}-{span[1]}"


class ScriptedPlanner:
    """Wants every job of its script (its service's options) whose inputs are all candidates."""

    def plan(self, parameters: PlanParameters) -> Plan:
        found = {span_of([file]): file.path for file in parameters.candidates}
        jobs = []
        for spans in parameters.options[parameters.kind.value]:  # type: ignore[attr-defined]  # a Script
            if found.keys() >= set(spans):
                paths = tuple(found.pop(span) for span in spans)
                jobs.append(_job(paths, parameters))
        return Plan(jobs=tuple(jobs), left=dict.fromkeys(found.values(), "not in the script yet"))


def _job(paths: tuple[str, ...], parameters: PlanParameters) -> PlannedJob:
    return PlannedJob(
        kind=parameters.kind,
        files=paths,
        group=parameters.groups[-1].name,
        priority=job_priority(
            parameters.kind,
            files_in_tablet=len(parameters.files),
            files_in_job=len(paths),
            file_limit=0,
        ),
        reason=f"the script merges {len(paths)} files",
    )


class GatedConfigurer:
    """Every job of the table waits at its own gate, in the folder that the table's options name."""

    def check(self, options: Mapping[str, str]) -> None:
        assert Path(options["gates"]).is_dir(), options

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        folder = Path(parameters.table.settings.configurer_options["gates"])
        wait_at(folder / gate_of(Kind(parameters.kind).value, span_of(parameters.inputs)))
        return OutputSpec()


class GatedSelector:
    """Chooses all files, after waiting at the gate that its options name."""

    def check(self, options: Mapping[str, str]) -> None:
        assert Path(options["gate"]).parent.is_dir(), options

    def select(self, parameters: SelectorParameters) -> Chosen:
        wait_at(Path(parameters.options["gate"]))
        return Chosen(files=tuple(file.path for file in parameters.files), reason="all")


def wait_at(gate: Path) -> None:
    """Return when a gate is open.

    Raises:
        TimeoutError: Nobody has opened it.
    """
    end_s = time.monotonic() + GATE_MAX_S
    while not gate.exists():
        if time.monotonic() >= end_s:
            raise TimeoutError(f"gate {gate.name} stays shut")
        time.sleep(0.02)
