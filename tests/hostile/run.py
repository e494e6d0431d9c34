"""Gives damaged bytes to the service, block by block, and counts what becomes of them.

A block has a table of its own: `STREAMS` streams are appended, `FILES` files are added one by
one, looked at by the coordinator and imported together, and one Arrow file is read as
`neve append` does. Each input has a seed of its own, which tells its place in its block, what
it was made of and what was done to it.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from common.errors import CompactionError
from neve.api.tables import ARROW_STREAM
from neve.cli import rows
from neve.client import Client
from neve.client.errors import (
    NeveError,
    ProtocolError,
    UnavailableError,
)
from neve.gateway.ingest.append import DECODED_FACTOR_MAX
from tests.hostile import bases
from tests.hostile.mutate import Sound, damaged_file, damaged_stream
from tests.hostile.service import BODY_BYTES_MAX, READERS, Service
from tests.support.gateway import TOKEN

STREAMS, FILES = 100, 30
BLOCK = STREAMS + FILES + 1
"""Inputs of a block; the last one is an Arrow file."""
ROOM_BYTES = 256 * 1024**2
"""For what a gateway needs besides the rows of a body: the tables of a run, an allocator's rest."""
WATCH_S = 0.02
ANSWER_WAIT_S = 180.0
"""Longer than any look may take, with its second try."""
FAULTY = 500


@dataclass
class Outcome:
    """What has become of the inputs so far."""

    counts: Counter[str] = field(default_factory=Counter)
    """By way and end: `append refused`."""
    violations: list[str] = field(default_factory=list)
    peaks: Counter[str] = field(default_factory=Counter)
    """Largest resident memory by kind of process."""
    limits: Counter[str] = field(default_factory=Counter)

    def count(self, way: str, end: str, more: int = 1) -> None:
        """Count an input."""
        self.counts[f"{way} {end}"] += more

    def violated(self, seed: int, way: str, fact: str) -> None:
        """Note what must not be, with what replays it."""
        self.violations.append(f"HOSTILE_SEED={seed} ({way}): {fact}")


class Watch:
    """Looks at the memory of the service's processes all the time."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._watched: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def follow(self, service: Service) -> None:
        """Look at a service from now on, and hold it and its readers against their limits."""
        begun = _resident(service.process.pid)
        self._watched[service.role] = service.process.pid
        body = DECODED_FACTOR_MAX * BODY_BYTES_MAX if service.role == "gateway" else 0
        limits = self._outcome.limits
        limits[service.role] = max(limits[service.role], begun + body + ROOM_BYTES)
        limits["reader"] = max(limits["reader"], begun + READERS.memory_bytes)

    def _look(self) -> None:
        peaks = self._outcome.peaks
        while not self._stop.wait(WATCH_S):
            for role, pid in [*self._watched.items()]:
                peaks[role] = max(peaks[role], _resident(pid))
                for reader in _descendants(pid):
                    peaks["reader"] = max(peaks["reader"], _resident(reader))


def _resident(pid: int) -> int:
    """Return the largest memory of a process as far as the system tells, 0 if it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _descendants(pid: int) -> list[int]:
    try:
        return [each.pid for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


class Run:
    """A run over inputs; the services are started anew where one has ended."""

    def __init__(self, folder: Path) -> None:
        """Make what inputs are made of.

        Args:
            folder: Takes tables and logs.
        """
        self.outcome = Outcome()
        self._folder = folder
        self._sound_files = {n: Sound.of_file(b) for n, b in bases.files(folder).items()}
        self._sound_streams, self._sound_arrow = bases.streams(), bases.arrow_files()
        self._services: dict[str, Service] = {}
        self._ended_deaths = 0

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Have services until the block ends."""
        with Watch(self.outcome) as self._watch:
            try:
                for role in ("gateway", "coordinator"):
                    self._start(role)
                yield self
            finally:
                for each in self._services.values():
                    each.close()
        self._require_memory()

    @property
    def reader_deaths(self) -> int:
        """How many readers have died, each of them replaced by the next."""
        return self._ended_deaths + sum(each.deaths for each in self._services.values())

    def check_bases(self) -> None:
        """Have everything taken as it is, or damage would tell nothing.

        Raises:
            NeveError: Something is refused.
        """
        with self._table("sound") as (client, place):
            for name, sound in self._sound_files.items():
                (place / f"{name}.parquet").write_bytes(sound.data)
                client.add_files("sound", [f"{name}.parquet"])
            for body in self._sound_streams.values():
                self._append("sound", body).raise_for_status()
            wanted = (len(self._sound_files), len(self._sound_streams))
            assert client.describe("sound").files == sum(wanted)
        for name, body in self._sound_arrow.items():
            path = self._folder / f"{name}.arrow"
            path.write_bytes(body)
            assert rows.read_rows(path, tuple).num_rows == bases.ROWS

    def block(self, number: int, only: int | None = None) -> None:
        """Give the inputs of a block, up to one that ends the gateway.

        Args:
            number: The first seed is so many times `BLOCK`.
            only: One seed of the block; None: all of them.
        """
        first = number * BLOCK
        seeds: Sequence[int] = range(first, first + BLOCK) if only is None else [only]
        with self._table(f"b{number}") as (client, place):
            self._folder_of_import(place).mkdir()
            gateway = self._services["gateway"]
            for seed in seeds:
                at = seed % BLOCK
                if at < STREAMS:
                    self._give_stream(seed, f"b{number}")
                elif at < STREAMS + FILES:
                    self._give_file(seed, f"b{number}", client, place)
                else:
                    self._give_arrow_file(seed)
                if gateway is not self._services["gateway"]:
                    return  # The table has gone with it.
            self._import(number, client, place, seeds)
            if gateway is not self._services["gateway"]:
                return
            self._require_service(seeds[-1], f"b{number}", client, place)

    # ------------------------------------------------------------ ways in

    def _give_stream(self, seed: int, table: str) -> None:
        draw = random.Random(seed)
        sound = draw.choice([*self._sound_streams.values()])
        done, body = damaged_stream(draw, sound)
        way = f"append, {done}"
        try:
            answer = self._append(table, body)
        except httpx.HTTPError as error:
            self._unanswered(seed, way, error)
            return
        if answer.status_code >= FAULTY:
            self.outcome.violated(seed, way, f"answered {answer.status_code}: {answer.text[:300]}")
        self.outcome.count("append", "read" if answer.is_success else "refused")

    def _give_file(self, seed: int, table: str, client: Client, place: Path) -> None:
        draw = random.Random(seed)
        done, body = damaged_file(draw, draw.choice([*self._sound_files.values()]))
        name = f"{seed}.parquet"
        (place / name).write_bytes(body)
        shutil.copy(place / name, self._folder_of_import(place) / name)
        way = f"add, {done}"
        deaths = self._services["gateway"].deaths
        try:
            client.add_files(table, [name])
            self.outcome.count("add", "read")
        except (ProtocolError, UnavailableError) as error:
            self._unanswered(seed, way, error)
        except NeveError as error:
            if error.status is not None and error.status >= FAULTY:
                self.outcome.violated(seed, way, f"answered {error.status}: {error}")
            died = self._services["gateway"].deaths > deaths
            self.outcome.count("add", "refused, its reader died" if died else "refused")
        self._look(seed, place, name, way)

    def _look(self, seed: int, place: Path, name: str, way: str) -> None:
        found = self._services["coordinator"].ask(f"file://{place}", name)
        if found is None:
            code = self._restart("coordinator")
            self.outcome.violated(seed, way, f"the coordinator has ended with {code}")
            return
        end = "refused, its reader died" if found == "died" else found
        self.outcome.count("coordinator's look", end)

    def _give_arrow_file(self, seed: int) -> None:
        """Read it as `neve append FILE` does: a process of its own may die of it."""
        draw = random.Random(seed)
        done, body = damaged_stream(draw, draw.choice([*self._sound_arrow.values()]))
        path = self._folder / f"{seed}.arrow"
        path.write_bytes(body)
        try:
            rows.read_rows(path, tuple)
            self.outcome.count("Arrow file", "read")
        except CompactionError as error:
            died = "it ends the process" in str(error)
            self.outcome.count("Arrow file", "refused, its reader died" if died else "refused")
        except Exception as error:  # Whatever else it raises is a fault.
            fact = f"raised {type(error).__name__}: {error}"
            self.outcome.violated(seed, f"Arrow file, {done}", fact)
        finally:
            path.unlink()

    def _import(self, number: int, client: Client, place: Path, seeds: Sequence[int]) -> None:
        """Import the files of a block, beside one that is sound."""
        folder = self._folder_of_import(place)
        files = len([*folder.iterdir()])
        if not files:
            return
        (folder / "sound.parquet").write_bytes(self._sound_files["arrow, snappy"].data)
        try:
            report = client.import_table(
                str(folder),
                f"i{number}",
                key=bases.KEY,
                version_column=bases.VERSION,
                leave_misfits=True,
            )
        except NeveError as error:
            broken = isinstance(error, ProtocolError | UnavailableError)
            if broken or (error.status or 0) >= FAULTY:
                self._unanswered(seeds[-1], "import of its block", error)
            self.outcome.count("import", "refused", files)
            return
        self.outcome.count("import", "read", files + 1 - report.misfits)
        self.outcome.count("import", "refused", report.misfits)
        client.drop(f"i{number}")

    # ------------------------------------------------------------ the service

    def _require_service(self, seed: int, table: str, client: Client, place: Path) -> None:
        """Require that sound rows are taken after all of this, by every way."""
        (place / "sound.parquet").write_bytes(self._sound_files["neve"].data)
        try:
            client.add_files(table, ["sound.parquet"])
            self._append(table, self._sound_streams["zstd"]).raise_for_status()
        except (NeveError, httpx.HTTPError) as error:
            self._unanswered(seed, "a sound file behind it", error)

    def _unanswered(self, seed: int, way: str, error: Exception) -> None:
        code = self._services["gateway"].ended()
        if code is None:
            self.outcome.violated(seed, way, f"not answered: {type(error).__name__}: {error}")
            return
        self.outcome.violated(seed, way, f"the gateway has ended with {code}")
        self._restart("gateway")

    def _require_memory(self) -> None:
        for kind, limit in self.outcome.limits.items():
            if self.outcome.peaks[kind] > limit:
                mib = self.outcome.peaks[kind] // 1024**2
                self.outcome.violations.append(f"memory of the {kind}: {mib} MiB, over its limit")

    def _start(self, role: str) -> None:
        self._services[role] = Service.start(role, self._folder)
        self._watch.follow(self._services[role])
        if role == "gateway":
            url = self._services[role].said["url"]
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": ARROW_STREAM}
            self._http = httpx.Client(base_url=url, headers=headers, timeout=ANSWER_WAIT_S)

    def _restart(self, role: str) -> int | None:
        """Start a service that has ended once more; return its exit code."""
        code = self._services[role].process.wait(60)
        self.outcome.counts[f"{role} deaths"] += 1
        self._start(role)
        return code

    def _append(self, table: str, body: bytes) -> httpx.Response:
        path = f"/v1/tables/{table}/append"
        try:
            return self._http.post(path, content=body)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            # A connection that was not used may be closed; a gateway that has died stays so.
            return self._http.post(path, content=body)

    @contextmanager
    def _table(self, name: str) -> Iterator[tuple[Client, Path]]:
        """Have an empty table until the block ends."""
        place = self._folder / "tables" / name
        place.mkdir(parents=True)
        gateway = self._services["gateway"]
        with Client(gateway.said["url"], token=TOKEN, timeout_s=ANSWER_WAIT_S) as client:
            client.create_table(
                name,
                str(place),
                schema=bases.SCHEMA,
                key=bases.KEY,
                version_column=bases.VERSION,
            )
            yield client, place
            if gateway is self._services["gateway"]:
                client.drop(name)
        shutil.rmtree(place)
        shutil.rmtree(self._folder_of_import(place), ignore_errors=True)

    def _folder_of_import(self, place: Path) -> Path:
        """Return a place beside a table's, which imports may take over."""
        return place.with_name(f"{place.name}-import")
