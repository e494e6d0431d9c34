"""Simulations: days of compaction in a process of its own, with the decision code of the service.

A simulation runs in a process with limits on its time and memory, at a lower priority, one at a
time: the gateway has no planners, and answers other calls meanwhile. It shows a table only to a
caller that may read it, and groups and compactors only to one that may read all tables.
"""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

from common.errors import ConfigError, RequestError
from neve import api
from neve.gateway.access.callers import READ_LISTED, Role, current_call, route
from neve.gateway.compactors import CompactorRoutes
from neve.gateway.jobs import JobRoutes
from neve.gateway.problems import QuotaError
from neve.gateway.rows.ingestion import IngestRoutes
from neve.gateway.services import LIST_MAX, Services
from neve.gateway.tables import TableRoutes

COMMAND = (sys.executable, "-m", "neve.simulate.side_by_side")
REFUSED = 3
"""Exit code of a process that could not carry out its order."""
CPU_S = 60
"""Processor time of a simulation."""
WALL_S = 180.0
"""Longest time of a simulation on a busy machine."""
MEMORY_BYTES = 1024**3
FILES_MAX = 20_000
"""Largest table that is simulated here."""
RETRY_AFTER_S = 5.0
ANSWER_BYTES_MAX = 16 * 1024**2
SMALLER = "simulate fewer days, tablets or variants, or use `neve simulate` on another machine"
NO_COMPACTORS = (
    "one compactor with one slot is assumed: your rights do not include the groups and compactors"
)


class SimulationRoutes:
    """The route of simulations."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tables, self._files = TableRoutes(services), IngestRoutes(services)
        self._jobs, self._compactors = JobRoutes(services), CompactorRoutes(services)
        self._runs = False

    @route("POST /v1/simulations", READ_LISTED.noted("with a table: on that table"))
    async def simulate(self, body: api.NewSimulation) -> api.Simulation:
        """Simulate days of compaction, and compare variants. Nothing is started or changed.

        Give a specification, or a table: its files, the arrivals of the last day and the speed of
        its jobs, with its planner and others. The simulation may take a minute of processor time;
        one runs at a time, and a call during another one is answered 429.
        """
        if bool(body.specification) == bool(body.table):
            raise RequestError("give either a specification or a table")
        order: dict[str, Any] = {"new": body, "cpu_s": CPU_S, "memory_bytes": MEMORY_BYTES}
        notes: tuple[str, ...] = ()
        if self._runs:
            raise QuotaError("another simulation is running", RETRY_AFTER_S)
        self._runs = True
        try:
            if body.table:
                sees_all = current_call().caller.may(Role.READ)
                notes = () if sees_all else (NO_COMPACTORS,)
                order["parts"] = await self._parts(body.table, sees_all=sees_all)
                order["now_s"] = self._services.clock.now_s()
            packed = await asyncio.to_thread(pickle.dumps, order)
            simulation = await _simulated(packed)
        finally:
            self._runs = False
        settings = self._services.settings.gateway
        return replace(
            simulation,
            notes=notes,
            hour_price=settings.compactor_hour_price,
            currency=settings.currency,
        )

    async def _parts(self, name: str, *, sees_all: bool) -> tuple[Any, ...]:
        """Return a table, its files and attempts, and the groups and compactors of the service."""
        table = await self._tables.describe(name, totals=False)
        files: list[api.File] = []
        after: str | None = None
        while True:
            page = await self._files.files(name, after)
            files += page.files
            if len(files) > FILES_MAX:
                raise RequestError(
                    f"table {name!r} has more than {FILES_MAX:,} files; `neve simulate --from"
                    f" {name}` simulates larger tables on your machine"
                )
            if (after := page.next) is None:
                break
        attempts = (await self._jobs.history(name, LIST_MAX))["attempts"]
        if not sees_all:
            return table, files, attempts, [], []
        groups = (await self._compactors.groups())["groups"]
        return table, files, attempts, groups, (await self._compactors.compactors())["compactors"]


async def _simulated(order: bytes) -> api.Simulation:
    """Carry out an order in a process.

    Raises:
        RequestError: The order is wrong, or takes too long.
        ConfigError: The process died.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(), start_new_session=True
    )
    try:
        output, errors = await asyncio.to_thread(_outputs, process, order)
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"the simulation takes longer than {WALL_S:g} s: {SMALLER}") from error
    finally:
        process.kill()  # A caller that leaves ends its simulation, and the thread that waits.
    code, text = process.returncode or 0, errors.decode("utf-8", "replace").strip()
    if code == REFUSED:
        raise RequestError(text)
    if code == -signal.SIGXCPU or (code == -signal.SIGKILL and not text):
        raise RequestError(
            f"the simulation needs more than {CPU_S} s of processor time, or too much memory:"
            f" {SMALLER}"
        )
    if code or len(output) > ANSWER_BYTES_MAX:
        raise ConfigError(f"the simulation failed (exit code {code}): {text[-500:]}")
    return await asyncio.to_thread(_unpacked, output)


def _unpacked(output: bytes) -> api.Simulation:
    """Return the simulation that a process has written."""
    answer = _of_tuples(json.loads(output))
    variants, curves = answer.pop("variants"), answer.pop("curves")
    return api.Simulation(
        variants=tuple(api.SimulatedVariant(**_of_tuples(variant)) for variant in variants),
        curves=tuple(api.SimulatedCurve(**curve) for curve in curves),
        **answer,
    )


def _of_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in fields.items()}


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists."""
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def _outputs(process: subprocess.Popen[bytes], order: bytes) -> tuple[bytes, bytes]:
    """Give a process its order; return what it writes. It has ended afterwards."""
    with process:
        try:
            return process.communicate(order, WALL_S)
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    """Return the environment of the process: paths of modules, few threads, and no secrets.

    Arrow's own allocators reserve gigabytes of address space before they use them.
    """
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
    }
