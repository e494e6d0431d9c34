"""What the stack really works off: measured while there is always more to do."""

import time
from dataclasses import dataclass

import psutil

from benchmarks.closed_loop.stack import FILE_BYTES, TABLES, Writer, moved_bytes
from neve.client import Client

AHEAD_BYTES = 16 * 1024**2
"""There is always so much to be rewritten: eight jobs for four slots."""
BATCH_FILES = 10
WARM_S, LENGTH_S = 15.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a saturated stack has done."""

    arrivals_bytes_s: float
    """Stored bytes of small files that were worked off per second."""
    moved_bytes_s: float
    """Read and written per second."""
    machine: float
    """Part of all cores that was busy."""
    file_bytes: float
    """Of a small file as it is stored."""

    @property
    def moved_per_byte(self) -> float:
        """Return bytes read and written for each byte that was worked off."""
        return self.moved_bytes_s / self.arrivals_bytes_s

    @property
    def files_s(self) -> float:
        """Return files per second that are worked off."""
        return self.arrivals_bytes_s / self.file_bytes


def measured(client: Client) -> Capacity:
    """Return what the stack works off when there is always more to do."""
    writer = Writer(client)
    _saturate(client, writer, WARM_S)
    psutil.cpu_percent()
    begun_s, before, moved = time.monotonic(), _worked_off(client, writer), moved_bytes(client)
    _saturate(client, writer, LENGTH_S)
    passed_s = time.monotonic() - begun_s
    return Capacity(
        arrivals_bytes_s=(_worked_off(client, writer) - before) / passed_s,
        moved_bytes_s=(moved_bytes(client) - moved) / passed_s,
        machine=psutil.cpu_percent() / 100,
        file_bytes=writer.arrived_bytes / writer.files,
    )


def _saturate(client: Client, writer: Writer, length_s: float) -> None:
    ends_s = time.monotonic() + length_s
    while time.monotonic() < ends_s:
        if client.control().backlog_bytes < AHEAD_BYTES:
            writer.write(BATCH_FILES)
        else:
            time.sleep(0.2)


def _worked_off(client: Client, writer: Writer) -> int:
    """Return the bytes of small files that are gone; what a running job has read is not."""
    small = [
        file.size_bytes
        for name in TABLES
        for file in client.files(name)
        if file.size_bytes < 2 * FILE_BYTES
    ]
    return writer.arrived_bytes - sum(small)
