"""What happens in a run: told as it happens, counted, and kept in a file."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Hear = Callable[[str], None]


class Story:
    """The numbers and failures of a run, and a line per event; may be used by several threads."""

    def __init__(self, path: Path, hear: Hear) -> None:
        """Begin a story; `hear` is told of what a person wants to read at once."""
        self.path = path
        self.numbers: Counter[str] = Counter()
        self.failures: list[str] = []
        self.over = threading.Event()
        """Set when the load must end: it is time, or something failed."""
        self._hear = hear
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        path.touch()

    def age_s(self) -> float:
        """Return how long the run lasts already."""
        return time.monotonic() - self._began_s

    def tell(self, what: str, **fields: Any) -> None:
        """Write an event down."""
        line = {"s": round(self.age_s(), 2), "what": what, **fields}
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, default=str) + "\n")

    def say(self, what: str, **fields: Any) -> None:
        """Write an event down, and tell it to whoever looks on."""
        self.tell(what, **fields)
        self._hear(what)

    def count(self, name: str, more: int = 1) -> None:
        """Count something."""
        with self._lock:
            self.numbers[name] += more

    def fail(self, why: str) -> None:
        """Note that something is wrong, which ends the run."""
        with self._lock:
            self.failures.append(f"{self.age_s():.1f} s: {why}")
        self.say(f"FAILED: {why}")
        self.over.set()

    def thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        """Start a thread whose error is a failure of the run."""

        def guarded() -> None:
            try:
                run()
            except Exception as error:  # whatever it is, the run has failed
                self.fail(f"{name}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread
