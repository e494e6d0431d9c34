"""All targets, what each is given in a long run, and the inputs that are kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuzz.archives import ArchivesTarget
from tests.fuzz.files import FilesTarget
from tests.fuzz.http import HttpTarget
from tests.fuzz.inputs import Target
from tests.fuzz.outcome import READ, REFUSED
from tests.fuzz.stage import Stage
from tests.fuzz.stored import StoredTarget
from tests.fuzz.texts import FAULT, TEXT_TARGETS

KEPT = Path(__file__).parents[1] / "data" / "fuzz"
"""Inputs that found something, and others that are worth it: a folder for each target."""
SHARES: Mapping[str, float] = {
    "http": 0.30,
    "files": 0.27,
    "stored": 0.06,
    "archives": 0.04,
    "expressions": 0.11,
    "keys": 0.06,
    "settings": 0.06,
    "simulations": 0.04,
    "documents": 0.06,
}
"""Parts of all inputs that targets get: by what they may hurt, and by what an input costs."""
Block = Callable[[int, int | None], None]


class TextsTarget(Target):
    """Texts of one kind, read in a process of its own."""

    name = "texts"
    block = 100

    def __init__(self, stage: Stage, kind: str) -> None:
        super().__init__(stage)
        self.name = kind  # type: ignore[misc]  # one class for all kinds
        self._texts = TEXT_TARGETS[kind]

    def draw(self, draw: random.Random) -> bytes:
        """Return a text."""
        return self._texts.draw(draw)

    def give(self, data: bytes, replay: str) -> None:
        """Have it read."""
        found = self._stage.read_text(replay, self.name, data)
        if found["end"] == FAULT:
            self._stage.outcome.violated(replay, self.name, found["said"])
        self._stage.outcome.count(self.name, READ if found["end"] == READ else REFUSED)


class Run:
    """Targets over the services of a stage."""

    def __init__(self, stage: Stage) -> None:
        """Know every target; one is made when it is first asked for."""
        self._stage = stage
        self._made: dict[str, Target | FilesTarget] = {}

    def target(self, name: str) -> Target | FilesTarget:
        """Return a target.

        Raises:
            SystemExit: There is none of this name; says which there are.
        """
        if name not in SHARES:
            raise SystemExit(f"there is no target {name!r}, expected one of: {', '.join(SHARES)}")
        if name not in self._made:
            kinds: Mapping[str, Callable[[Stage], Target | FilesTarget]] = {
                "http": HttpTarget,
                "files": FilesTarget,
                "stored": StoredTarget,
                "archives": ArchivesTarget,
            }
            made = kinds.get(name, lambda stage: TextsTarget(stage, name))(self._stage)
            self._made[name] = made
        return self._made[name]

    def kept(self, name: str) -> int:
        """Give a target the inputs that are kept for it; return how many there are."""
        inputs = kept_inputs(name)
        target = self.target(name)
        if isinstance(target, FilesTarget):
            target.run_kept(inputs)
            return len(inputs)
        for each, data in inputs.items():
            target.give_timed(data, f"tests/data/fuzz/{name}/{each}")
        target.after_block(f"tests/data/fuzz/{name}")
        return len(inputs)


def kept_inputs(name: str) -> dict[str, bytes]:
    """Return the inputs that are kept for a target, by name."""
    folder = KEPT / name
    return (
        {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        if folder.is_dir()
        else {}
    )
