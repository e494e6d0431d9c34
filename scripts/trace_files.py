"""Count the product's files whose functions run from `neve compact` until the request is done.

`python -m scripts.trace_files` starts a stack of its own, adds two small files to a table, and
compacts it with `neve compact --wait`. Every Python process of the stack records whose functions it
calls, in two phases: at rest, and during the compaction. Printed are the files of the compaction,
and how many of them do not run at rest: those are what a reader has to open to follow the request.
Reader processes have an empty environment and are not recorded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "coordinator", "compactor", "neve")
REST, COMPACTION = "rest", "compaction"
LOOK_S, SETTLE_S, REST_S = 0.1, 15.0, 30.0
RECORDER = """
import json, os, sys, threading, time
from pathlib import Path

folder = Path(os.environ["TRACED_FILES"])
seen = {}
current = set()

def note(frame, event, arg):
    if event == "call":
        current.add(frame.f_code)

def follow():
    global current
    phase = ""
    while True:
        time.sleep(0.1)
        try:
            wanted = (folder / "phase").read_text()
        except OSError:
            continue
        if wanted != phase:
            phase, current = wanted, seen.setdefault(wanted, set())
            if phase == "end":
                files = {
                    name: sorted({code.co_filename for code in codes if code.co_name != "<module>"})
                    for name, codes in seen.items()
                }
                (folder / f"{os.getpid()}.json").write_text(json.dumps(files))

threading.Thread(target=follow, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
"""
"""Run by each process at its start, as `sitecustomize`."""


def traced(folder: Path) -> Counter[str]:
    """Run a stack with a compaction; return how many phases called each file of the product."""
    (folder / "sitecustomize.py").write_text(RECORDER, "utf-8")
    environ = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "TRACED_FILES": str(folder),
        "NEVE_HOME": str(folder / "home"),
    }

    def neve(*words: str) -> None:
        program = "from neve.cli import main; main()"
        subprocess.run([sys.executable, "-c", program, *words], env=environ, check=True)

    neve("up")
    try:
        compact(folder, neve)
    finally:
        neve("down")
    return counted(folder)


def compact(folder: Path, neve: Callable[..., None]) -> None:
    """Record some time at rest, and then a compaction."""
    place, schema = str(folder / "lake" / "events"), "id:int64,version:int64"
    keyed = ("--key", "id", "--version", "version")
    neve("table", "create", "events", "--location", place, "--schema", schema, *keyed)
    for number in range(2):  # Too few for a job of the planner.
        rows = folder / f"{number}.csv"
        rows.write_text("id,version\n" + "".join(f"{row},{number}\n" for row in range(1000)))
        neve("append", "events", str(rows))
    pause(SETTLE_S)
    phase(folder, REST)
    pause(REST_S)
    phase(folder, COMPACTION)
    neve("compact", "events", "--wait")
    phase(folder, "end")
    pause(20 * LOOK_S)


def phase(folder: Path, name: str) -> None:
    """Let every process record for a phase."""
    (folder / "phase").write_text(name, "utf-8")
    pause(3 * LOOK_S)


def pause(seconds: float) -> None:
    """Do nothing for a while."""
    Event().wait(seconds)


def counted(folder: Path) -> Counter[str]:
    """Return each file of the product that the compaction called, with the number of phases."""
    phases: dict[str, set[str]] = {REST: set(), COMPACTION: set()}
    for report in folder.glob("*.json"):
        for name, files in json.loads(report.read_text("utf-8")).items():
            phases.setdefault(name, set()).update(filter(None, map(product_name, files)))
    return Counter([*phases[COMPACTION], *(phases[COMPACTION] & phases[REST])])


def product_name(path: str) -> str:
    """Return a file's name below the checkout; empty: it is not of the product."""
    if not path.startswith(str(ROOT)):
        return ""
    name = str(Path(path).relative_to(ROOT))
    return name if name.startswith(tuple(f"{package}/" for package in PACKAGES)) else ""


def main() -> None:
    """Print the files, and their number."""
    with tempfile.TemporaryDirectory(prefix="neve-trace-") as folder:
        files = traced(Path(folder))
    for name, phases in sorted(files.items()):
        sys.stdout.write(f"{'at rest too' if phases > 1 else 'compaction':12} {name}\n")
    only = sum(phases == 1 for phases in files.values())
    sys.stdout.write(f"{len(files)} files run in the compaction; {only} of them not at rest\n")


if __name__ == "__main__":
    main()
