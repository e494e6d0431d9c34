"""`make chaos`: runs of some minutes, each on a stack of its own, until the time is over.

The environment says how: CHAOS_MINUTES (20) in all, CHAOS_SEED (drawn if left out) of the
first run, the next one has the next seed; CHAOS_RUN_MINUTES (5) is the longest run;
CHAOS_FOLDER (build/chaos) takes the files; CHAOS_PATIENCE=1 waits in the end until storage
holds nothing but the tables' files. The summary adds up every run of the folder.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from neve.local.processes import exit_on_sigterm
from neve.local.servers import AppendSync
from tests.chaos.disk import with_own_mounts
from tests.chaos.run import Result, Wanted, run
from tests.chaos.show import Show, summary

FAULTS_MAX = 1000
AROUND_S = 120.0
"""What a run needs besides its faults: start, rest, checks."""
FAULTS_MIN_S = 30.0
SYNCS = (AppendSync.ALWAYS, AppendSync.ALWAYS, AppendSync.EVERYSEC)


def main() -> int:
    """Return 1 if a run has failed."""
    console = Console()
    if no_disk := with_own_mounts():
        console.print(no_disk, markup=False)
    exit_on_sigterm()
    end_s = time.monotonic() + 60 * _minutes("CHAOS_MINUTES", 20)
    run_s = 60 * _minutes("CHAOS_RUN_MINUTES", 5)
    first = int(os.environ.get("CHAOS_SEED") or random.randrange(1_000_000))
    folder = Path(os.environ.get("CHAOS_FOLDER") or "build/chaos").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    seed = first
    while seed == first or time.monotonic() + AROUND_S + FAULTS_MIN_S < end_s:
        left_s = min(run_s, end_s - time.monotonic()) - AROUND_S
        _one(console, folder, seed, max(left_s, FAULTS_MIN_S))
        seed += 1
    results = [
        Result(**json.loads(path.read_text("utf-8"))) for path in folder.glob("*/result.json")
    ]
    results.sort(key=lambda each: each.seed)
    (folder / "summary.md").write_text("\n".join([*summary(results), ""]), "utf-8")
    console.print("\n".join(["", *summary(results)]), markup=False)
    for each in results:
        for failure in each.failures:
            console.print(f"seed {each.seed}: {failure}", markup=False)
    console.print(f"stories: {folder}")
    return 1 if any(each.failures for each in results) else 0


def _one(console: Console, folder: Path, seed: int, length_s: float) -> None:
    """Do one run; its tables and logs stay only if it has failed."""
    # By the seed, so that the seed alone replays a run.
    sync = SYNCS[seed % len(SYNCS)]
    place = folder / f"seed-{seed}"
    if place.exists():
        shutil.rmtree(place)
    with Show(console, f"chaos, seed {seed}") as show:
        wanted = Wanted(
            seed=seed,
            sync=sync,
            faults_max=FAULTS_MAX,
            length_s=length_s,
            patiently=bool(os.environ.get("CHAOS_PATIENCE")),
            watch=show.watch,
        )
        result = run(place, wanted, show.hear)
    if not result.failures:
        for path in place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def _minutes(name: str, usual: float) -> float:
    text = os.environ.get(name) or str(usual)
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        sys.exit(f"{name} is {text!r}, expected a positive number of minutes")
    return minutes


if __name__ == "__main__":
    sys.exit(main())
