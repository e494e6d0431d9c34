"""The processes that hostile bytes are given to: a gateway, and what a coordinator does with files.

    python -m tests.hostile.service gateway|coordinator DEATHS

`DEATHS` takes a line for each reader that has died. Both talk in lines of JSON and end with
their input. The gateway is the real application on a port, with its readers and its limit of
memory. The coordinator samples the keys of files, as it does where tablets are split.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import CompactionError
from common.memory_limit import limit_memory
from common.model.table import Table
from common.parquet.file_inspection import sample_keys
from common.parquet.location import open_location
from common.readers.pool import ReaderDeathError, open_readers
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.settings import ReaderSettings, Settings
from tests.hostile import bases
from tests.support.gateway import serving

READERS = ReaderSettings(count=2, wait_s=30.0)
"""As the service has them, but fewer, and less patient: a file of some KB is read in no time."""
BODY_BYTES_MAX = 16 * 1024**2
DYING_S = 2.0
"""Its connections break before it has gone."""


def _table(location: str) -> Table:
    return Table(
        id="t-1",
        name="hostile",
        location=location,
        schema=columns_of(bases.SCHEMA),
        key=bases.KEY,
        version_column=bases.VERSION,
    )


def _gateway() -> None:
    limit_memory(Settings().gateway.memory_max)
    with serving(body_bytes_max=BODY_BYTES_MAX) as served:
        print(json.dumps({"url": served.url}), flush=True)
        sys.stdin.read()


def _coordinator() -> None:
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        location, path = json.loads(line)
        table = _table(location)
        try:
            sample_keys(open_location(location), path, RowRules.of(table))
            answer = "read"
        except ReaderDeathError:
            answer = "died"
        except CompactionError:
            answer = "refused"
        print(json.dumps(answer), flush=True)


def main(arguments: list[str]) -> None:
    """Serve until the input ends."""
    role, deaths = arguments
    with open(deaths, "a", encoding="utf-8") as told:

        def log(event: str, **fields: object) -> None:
            if event == "reader died":
                told.write(f"{json.dumps(fields, default=str)}\n")
                told.flush()

        readers = open_readers(READERS, log)
        try:
            {"gateway": _gateway, "coordinator": _coordinator}[role]()
        finally:
            readers.close()


@dataclass
class Service:
    """One of these processes, from the side of who gives it bytes."""

    role: str
    process: subprocess.Popen[str]
    said: dict[str, Any]
    deaths_file: Path

    @classmethod
    def start(cls, role: str, folder: Path) -> Service:
        """Start one that serves when this returns."""
        deaths = folder / f"{role}.deaths"
        command = [sys.executable, "-m", __spec__.name, role, str(deaths)]
        with (folder / f"{role}.err").open("a") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        assert process.stdout is not None
        return cls(role, process, json.loads(process.stdout.readline()), deaths)

    @property
    def deaths(self) -> int:
        """How many of its readers have died."""
        return len(self.deaths_file.read_text("utf-8").splitlines())

    def ask(self, *question: str) -> str | None:
        """Return the answer to a line; None: there is nobody any more."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(f"{json.dumps(question)}\n")
            stdin.flush()
            return str(json.loads(stdout.readline()))
        except (OSError, ValueError):
            return None

    def ended(self) -> int | None:
        """Return the exit code if it has ended, or is about to."""
        try:
            return self.process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=60)


if __name__ == "__main__":
    main(sys.argv[1:])
