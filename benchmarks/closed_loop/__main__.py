"""Run the steps: capacity, runs, simulated runs and figures.

    python -m benchmarks.closed_loop [--controller drain-time]... [--step capacity|run|figures]...
        [--folder build/closed-loop] [--svg FILE] [--scale 1.0] [--engine raydp|local]

A step finds what earlier ones have left in the folder. Without `--step` all are done, which takes
six minutes for each controller.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.closed_loop import capacity as measuring
from benchmarks.closed_loop import simulated
from benchmarks.closed_loop.capacity import Capacity
from benchmarks.closed_loop.figures import Pair, report
from benchmarks.closed_loop.picture import picture
from benchmarks.closed_loop.schedule import Phase, phases
from benchmarks.closed_loop.stack import read_samples, running, samples, write_samples
from neve.local.processes import exit_on_sigterm

CONTROLLERS = ("static", "drain-time", "control-points")
STEPS = ("capacity", "run", "figures")


def main() -> None:
    """Do what the command line says."""
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", action="append", help="default: three of them")
    parser.add_argument("--step", action="append", choices=STEPS, help="default: all")
    parser.add_argument("--folder", type=Path, default=Path("build/closed-loop"))
    parser.add_argument("--svg", type=Path, help="picture; default: in the folder")
    parser.add_argument("--scale", type=float, default=1.0, help="of the phases' lengths")
    parser.add_argument("--engine", default="raydp", choices=["raydp", "local"])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    steps = given.step or STEPS
    if "capacity" in steps:
        measure_capacity(given.folder, given.engine)
    capacity = Capacity(**json.loads(_capacity_file(given.folder).read_text("utf-8")))
    for controller in given.controller or CONTROLLERS:
        if "run" in steps:
            run(given.folder, capacity, controller, given)
    if "figures" in steps:
        show(given.folder, capacity, given)


def measure_capacity(folder: Path, engine: str) -> None:
    """Saturate a stack and keep what it has done."""
    with running("static", engine) as client:
        found = measuring.measured(client)
    print(
        f"capacity: {found.arrivals_bytes_s:,.0f} bytes/s of arrivals; moved"
        f" {found.moved_bytes_s:,.0f} bytes/s, {found.moved_per_byte:.2f} for each byte that"
        f" was worked off; the machine was {found.machine:.0%} busy",
        flush=True,
    )
    _capacity_file(folder).write_text(json.dumps(asdict(found), indent=1) + "\n", "utf-8")


def run(folder: Path, capacity: Capacity, controller: str, given: argparse.Namespace) -> None:
    """Run all phases under one controller and keep the samples."""
    plan = phases(given.scale)
    with running(controller, given.engine) as client:
        found = list(samples(client, plan, capacity.files_s))
    write_samples(folder / f"{controller}.csv", found)
    print(f"{controller}: {len(found)} samples", flush=True)


def show(folder: Path, capacity: Capacity, given: argparse.Namespace) -> None:
    """Print what came of it, beside the simulation, and draw it."""
    plan = phases(given.scale)
    pairs = pairs_of(folder, plan, capacity, given.controller or CONTROLLERS)
    for line in report(plan, pairs, capacity.arrivals_bytes_s):
        print(line)
    (given.svg or folder / "closed-loop.svg").write_text(picture(plan, pairs), "utf-8")


def pairs_of(
    folder: Path, plan: list[Phase], capacity: Capacity, controllers: Sequence[str]
) -> list[Pair]:
    """Return the runs whose samples are in a folder, each with its simulation."""
    runs = {controller: read_samples(folder / f"{controller}.csv") for controller in controllers}
    arrived = simulated.arrived_part(plan, capacity, list(runs.values()))
    return [
        Pair(
            controller=each,
            real=tuple(run),
            foretold=tuple(simulated.run(plan, capacity, each, arrived)),
        )
        for each, run in runs.items()
    ]


def _capacity_file(folder: Path) -> Path:
    return folder / "capacity.json"


if __name__ == "__main__":
    main()
