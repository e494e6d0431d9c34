"""Damaged Parquet and Arrow, block by block, by every way in that files and streams have.

A block has a table of its own: `STREAMS` streams are appended, `FILES` files are added one by
one, looked at by the coordinator and imported together, and one Arrow file is read as
`neve append` does. Each input has a seed of its own, which tells its place in its block, what
it was made of and what was done to it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from common.errors import CompactionError
from neve.cli import rows
from neve.client import Client
from neve.client.errors import (
    NeveError,
    ProtocolError,
    UnavailableError,
)
from tests.fuzz import bases
from tests.fuzz.mutate import Sound, damaged_file, damaged_stream
from tests.fuzz.outcome import READ, READER_DIED, REFUSED
from tests.fuzz.stage import FAULTY, Stage, replay_of

NAME = "files"
DIED = ("ends the process that reads it", "the process that read it")
STREAMS, FILES = 100, 30
BLOCK = STREAMS + FILES + 1
"""Inputs of a block; the last one is an Arrow file."""
APPEND, ADD, LOOK, IMPORT, ARROW = "append", "add", "coordinator's look", "import", "Arrow file"
WAYS = (APPEND, ADD, LOOK, IMPORT, ARROW)


class FilesTarget:
    """Gives damaged streams and files."""

    name = NAME
    block = BLOCK

    def __init__(self, stage: Stage) -> None:
        """Make what inputs are made of."""
        self._stage = stage
        self._folder = stage.folder
        self._files = 0
        files = bases.files(stage.folder)
        self._sound_files = {name: Sound.of_file(body) for name, body in files.items()}
        self._sound_streams, self._sound_arrow = bases.streams(), bases.arrow_files()

    def check_bases(self) -> None:
        """Have everything taken as it is, or damage would tell nothing.

        Raises:
            NeveError: Something is refused.
        """
        with self._table("bases") as (client, place):
            for name, sound in self._sound_files.items():
                (place / f"{name}.parquet").write_bytes(sound.data)
                client.add_files("bases", [f"{name}.parquet"])
            for body in self._sound_streams.values():
                self._append("bases", body).raise_for_status()
            wanted = (len(self._sound_files), len(self._sound_streams))
            assert client.describe("bases").files == sum(wanted)
        for name, body in self._sound_arrow.items():
            path = self._folder / f"{name}.arrow"
            path.write_bytes(body)
            assert rows.read_rows(path, tuple).num_rows == bases.ROWS

    def run_block(self, number: int, only: int | None = None) -> None:
        """Give the inputs of a block, up to one that ends the gateway.

        Args:
            number: The first seed is so many times `BLOCK`.
            only: One seed of the block; None: all of them.
        """
        first = number * BLOCK
        seeds: Sequence[int] = range(first, first + BLOCK) if only is None else [only]
        with self._table(f"b{number}") as (client, place):
            self._folder_of_import(place).mkdir()
            for seed in seeds:
                at, draw = seed % BLOCK, random.Random(seed)
                if at < STREAMS:
                    done, body = damaged_stream(draw, draw.choice([*self._sound_streams.values()]))
                    self.give_stream(replay_of(NAME, seed), f"append, {done}", f"b{number}", body)
                elif at < STREAMS + FILES:
                    done, body = damaged_file(draw, draw.choice([*self._sound_files.values()]))
                    self.give_file(replay_of(NAME, seed), f"add, {done}", client, place, body)
                else:
                    done, body = damaged_stream(draw, draw.choice([*self._sound_arrow.values()]))
                    self.give_arrow_file(replay_of(NAME, seed), f"Arrow file, {done}", body)
            replay = replay_of(NAME, seeds[-1])
            self._import(replay, f"i{number}", client, place)
            self._require_taken(replay, f"b{number}", client, place)
        self._stage.require_sound(replay, NAME)

    def run_kept(self, kept: Mapping[str, bytes]) -> None:
        """Give inputs that are kept: their names end as what they are."""
        with self._table("kept") as (client, place):
            self._folder_of_import(place).mkdir()
            for name, body in kept.items():
                replay = f"tests/data/fuzz/{NAME}/{name}"
                if name.endswith(".parquet"):
                    self.give_file(replay, "add", client, place, body)
                elif name.endswith(".stream"):
                    self.give_stream(replay, "append", "kept", body)
                else:
                    self.give_arrow_file(replay, "Arrow file", body)
            self._import(NAME, "i-kept", client, place)
            self._require_taken(NAME, "kept", client, place)
        self._stage.require_sound(NAME, NAME)

    # ------------------------------------------------------------ Ways in

    def give_stream(self, replay: str, way: str, table: str, body: bytes) -> None:
        """Append a stream."""
        outcome = self._stage.outcome
        try:
            answer = self._append(table, body)
        except httpx.HTTPError as error:
            self._stage.unanswered(replay, way, "gateway", error)
            return
        if answer.status_code >= FAULTY:
            outcome.violated(replay, way, f"answered {answer.status_code}: {answer.text[:300]}")
        outcome.count(APPEND, READ if answer.is_success else REFUSED)

    def give_file(self, replay: str, way: str, client: Client, place: Path, body: bytes) -> None:
        """Add a file, have the coordinator look at it, and put it where the import finds it."""
        self._files += 1
        name = f"{self._files}.parquet"
        (place / name).write_bytes(body)
        shutil.copy(place / name, self._folder_of_import(place) / name)
        outcome = self._stage.outcome
        try:
            client.add_files(place.name, [name])
            outcome.count(ADD, READ)
        except (ProtocolError, UnavailableError) as error:
            self._stage.unanswered(replay, way, "gateway", error)
        except NeveError as error:
            if error.status is not None and error.status >= FAULTY:
                outcome.violated(replay, way, f"answered {error.status}: {error}")
            outcome.count(ADD, _refusal(error))
        found = self._stage.ask(replay, way, "look", f"file://{place}", name)
        if found is not None:
            outcome.count(LOOK, found)

    def give_arrow_file(self, replay: str, way: str, body: bytes) -> None:
        """Read it as `neve append FILE` does: a process of its own may die of it."""
        outcome, path = self._stage.outcome, self._folder / "damaged.arrow"
        path.write_bytes(body)
        try:
            rows.read_rows(path, tuple)
            outcome.count(ARROW, READ)
        except CompactionError as error:
            outcome.count(ARROW, _refusal(error))
        except Exception as error:  # Whatever else it raises is a fault.
            outcome.violated(replay, way, f"raised {type(error).__name__}: {error}")

    def _import(self, replay: str, table: str, client: Client, place: Path) -> None:
        """Import the files of a block, beside one that is sound."""
        folder, outcome = self._folder_of_import(place), self._stage.outcome
        files = len([*folder.iterdir()])
        if not files:
            return
        (folder / "sound.parquet").write_bytes(self._sound_files["arrow, snappy"].data)
        try:
            report = client.import_table(
                str(folder),
                table,
                key=bases.KEY,
                version_column=bases.VERSION,
                leave_misfits=True,
            )
        except NeveError as error:
            broken = isinstance(error, ProtocolError | UnavailableError)
            if broken or (error.status or 0) >= FAULTY:
                self._stage.unanswered(replay, "import of its block", "gateway", error)
            outcome.count(IMPORT, REFUSED, files)
            return
        outcome.count(IMPORT, READ, files + 1 - report.misfits)
        outcome.count(IMPORT, REFUSED, report.misfits)
        client.drop(table)

    # ------------------------------------------------------------ The service

    def _require_taken(self, replay: str, table: str, client: Client, place: Path) -> None:
        """Require that sound rows are taken after all of this, by every way."""
        (place / "sound.parquet").write_bytes(self._sound_files["neve"].data)
        try:
            client.add_files(table, ["sound.parquet"])
            self._append(table, self._sound_streams["zstd"]).raise_for_status()
        except (NeveError, httpx.HTTPError) as error:
            self._stage.unanswered(replay, "a sound file behind it", "gateway", error)

    def _append(self, table: str, body: bytes) -> httpx.Response:
        path = f"/v1/tables/{table}/append"
        try:
            return self._stage.http.post(path, content=body)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            # A connection that was not used may be closed; a gateway that has died stays so.
            return self._stage.http.post(path, content=body)

    @contextmanager
    def _table(self, name: str) -> Iterator[tuple[Client, Path]]:
        """Have an empty table until the block ends."""
        place = self._folder / "tables" / name
        place.mkdir(parents=True)
        with self._stage.client() as client:
            client.create_table(
                name,
                str(place),
                schema=bases.SCHEMA,
                key=bases.KEY,
                version_column=bases.VERSION,
            )
            yield client, place
        with self._stage.client() as client:  # Of the gateway that is there by now.
            client.drop(name)
        self._stage.remove(place)
        self._stage.remove(self._folder_of_import(place))

    def _folder_of_import(self, place: Path) -> Path:
        """Return a place beside a table's, which imports may take over."""
        return place.with_name(f"{place.name}-import")


def _refusal(error: Exception) -> str:
    return READER_DIED if any(each in str(error) for each in DIED) else REFUSED
