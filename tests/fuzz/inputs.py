"""What targets have in common: a seed draws an input; after a block everybody must be well."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tests.fuzz.stage import INPUT_WAIT_S, Stage, replay_of


class Target(ABC):
    """A way into the service, and inputs for it that are bytes."""

    name: ClassVar[str]
    block: ClassVar[int]
    """Inputs after each of which everybody must be well."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def run_block(self, number: int, only: int | None = None) -> None:
        """Give the inputs of a block.

        Args:
            number: The first seed is so many times `block`.
            only: One seed of the block; None: all of them.
        """
        first = number * self.block
        self._give_all(range(first, first + self.block) if only is None else [only])

    def run_first(self, count: int) -> None:
        """Give the first inputs."""
        self._give_all(range(count))

    def _give_all(self, seeds: Sequence[int]) -> None:
        for seed in seeds:
            data = self.draw(random.Random(f"{self.name} {seed}"))
            self.give_timed(data, replay_of(self.name, seed))
        self.after_block(replay_of(self.name, seeds[0]))

    def give_timed(self, data: bytes, replay: str) -> None:
        """Give an input, and note if it took longer than anything may."""
        begun_s = time.monotonic()
        self.give(data, replay)
        took_s = time.monotonic() - begun_s
        if took_s > INPUT_WAIT_S:
            self._stage.outcome.violated(replay, self.name, f"it took {took_s:.0f} s")

    @abstractmethod
    def draw(self, draw: random.Random) -> bytes:
        """Return an input."""

    @abstractmethod
    def give(self, data: bytes, replay: str) -> None:
        """Give an input, count how it ends, and note what must not be."""

    def after_block(self, replay: str) -> None:
        """Require that everybody is well."""
        self._stage.require_sound(replay, self.name)
