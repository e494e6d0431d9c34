"""Archives that somebody else has written, given to `restore`: refused, or as sound as others.

An input is an archive in which `@PLACE@` stands for the folder of the run; if its last line has
`@DIGEST@`, the right digest is put there, so that what it says is looked at.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from neve.client.errors import CallerError, NeveError, RefusedError
from neve.recovery.archive import Digest, line_of
from tests.fuzz.inputs import Target
from tests.fuzz.junk import spoiled, spoiled_bytes
from tests.fuzz.outcome import READ, REFUSED
from tests.fuzz.stage import AWAY, FAULTY, SOUND, Stage
from tests.support.hostile_archives import counted, lines_of, two_tables

NAME = "archives"
PLACE, DIGEST = "@PLACE@", b"@DIGEST@"


class ArchivesTarget(Target):
    """Restores damaged archives; what is restored must be whole, and goes again."""

    name = NAME
    block = 50

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._lines: list[dict[str, Any]] = []
        self._kept: set[str] = set()
        """Tables that no archive has brought."""

    def draw(self, draw: random.Random) -> bytes:
        """Return an archive, most with the digest that it should have."""
        lines = copy.deepcopy(self._known())
        for _ in range(draw.choice((1, 1, 2, 3))):
            at = draw.randrange(len(lines))
            match draw.randrange(10):
                case 0:
                    lines.insert(at, copy.deepcopy(draw.choice(lines)))
                case 1 if len(lines) > 1:
                    del lines[at]
                case _:
                    lines[at] = spoiled(draw, lines[at])
        rows = [json.dumps(line).encode() for line in lines]
        if draw.random() < 0.9:
            rows = [json.dumps(each).encode() for each in _counted(lines)]
        data = b"\n".join([*rows, DIGEST])
        return spoiled_bytes(draw, data) if draw.random() < 0.15 else data

    def give(self, data: bytes, replay: str) -> None:
        """Restore an archive; whatever comes of it is looked at, and dropped."""
        self._known()
        outcome, path = self._stage.outcome, self._stage.folder / "damaged.neve"
        path.write_bytes(_whole(data, self._stage.folder))
        with self._stage.client() as client:
            try:
                client.restore(path)
                outcome.count(NAME, READ)
            except (CallerError, RefusedError):
                outcome.count(NAME, REFUSED)
            except NeveError as error:
                if error.status != AWAY:
                    self._stage.unanswered(replay, NAME, "gateway", error)
                    return
                outcome.count(NAME, REFUSED)  # It says why.
            try:
                for name in {table.name for table in client.tables()} - self._kept:
                    client.describe(name)
                    client.fsck(name)
                    client.drop(name)
            except NeveError as error:
                if (error.status or FAULTY) >= FAULTY and error.status != AWAY:
                    fact = f"what it has restored: {type(error).__name__} {error}"
                    outcome.violated(replay, NAME, fact)

    def _known(self) -> list[dict[str, Any]]:
        """Return the lines of a sound archive of tables that are gone since."""
        if self._lines:
            return self._lines
        folder, path = self._stage.folder / "tables", self._stage.folder / "sound.neve"
        with self._stage.client() as client:
            self._kept = {table.name for table in client.tables()} | {SOUND}
            with two_tables(client, folder) as names:
                client.backup(path, names)
        text = path.read_text("utf-8").replace(str(self._stage.folder), PLACE)
        self._lines = lines_of(text.encode())
        return self._lines


def _counted(lines: list[Any]) -> list[Any]:
    """Return lines whose counts are right, as far as they are lines of an archive."""
    try:
        return [*counted(lines)]
    except (AttributeError, TypeError):
        return lines


def _whole(data: bytes, folder: Path) -> bytes:
    data = data.replace(PLACE.encode(), str(folder).encode())
    if not data.endswith(DIGEST):
        return data
    digest = Digest()
    made = [digest.see(line + b"\n") for line in data.removesuffix(DIGEST).splitlines()]
    return b"".join([*made, line_of("end", lines=digest.lines, sha256=digest.hex)])
