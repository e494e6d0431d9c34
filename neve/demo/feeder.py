"""Brings the feed's files to the table, at once or slowly, as a feed would."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from neve.client import Client
from neve.demo.feed import FeedFile

BATCH_FILES = 12
LATE_PAUSE_S = 1.0
PAUSE = threading.Event()
"""Never set: waiting for it is a pause."""


class Feeder:
    """Adds files of the feed to the table, in order of arrival."""

    def __init__(self, client: Client, table: str, location: Path) -> None:
        """Add to the demo's table."""
        self._client = client
        self._table = table
        self._location = location
        self.added_bytes = 0
        self.error: BaseException | None = None

    def add(self, files: Sequence[FeedFile]) -> None:
        """Copy files below the table's location and add them, a batch per call."""
        for first in range(0, len(files), BATCH_FILES):
            batch = files[first : first + BATCH_FILES]
            for file in batch:
                shutil.copyfile(file.path, self._location / file.path.name)
                self.added_bytes += file.path.stat().st_size
            self._client.add_files(self._table, [file.path.name for file in batch])

    def add_slowly(self, files: Sequence[FeedFile]) -> threading.Thread:
        """Begin to add files in the background, with pauses, as a feed would."""

        def work() -> None:
            try:
                for first in range(0, len(files), BATCH_FILES):
                    self.add(files[first : first + BATCH_FILES])
                    PAUSE.wait(LATE_PAUSE_S)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=work, name="feed", daemon=True)
        thread.start()
        return thread
