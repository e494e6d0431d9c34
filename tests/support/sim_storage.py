"""Storage that fails, lags and lists late, over files that are really there.

It stands in the place of Arrow's file systems, as a disk (which knows links, and moves files) or
as an object store (whose objects appear whole). What it does wrong is drawn by a stream of its
own: a lake whose seed draws none of it lives as if it were not there.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from tests.support.sim_loop import SimLoop, World

T = TypeVar("T")

STORAGE_SHARE = 0.7
"""Of lakes whose storage does something wrong."""
STALE_SHARE = 0.7
"""Of listings that are late, where any are."""
SLOW_SHARE = 0.1
"""Of pieces of work that take long, where any do."""
AFTER_SHARE = 0.5
"""Of operations that fail: these have had their effect."""
OUTAGE_MAX_S, PEACE_MAX_S = 8.0, 30.0
CAUSES = (
    (errno.EIO, "simulated storage: it fails"),
    (errno.ESTALE, "simulated storage: a stale handle"),
    (errno.ETIMEDOUT, "simulated storage: no answer"),
)
AWS_CAUSES = (
    "AWS Error SERVICE_UNAVAILABLE during an operation: simulated storage",
    "AWS Error SLOW_DOWN during an operation: simulated storage",
    "AWS Error INTERNAL_FAILURE during an operation: simulated storage",
    "AWS Error NETWORK_CONNECTION during an operation: simulated storage",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFaults:
    """What is wrong with a storage. Times in seconds of simulated time."""

    far: bool = False
    """It is an object store."""
    lists_late_s: float = 0.0
    """So long a listing may miss what was written, and name what was deleted."""
    fails: float = 0.0
    """Probability of an operation."""
    outages: bool = False
    """For a stretch of seconds, every operation fails."""
    slow_s: float = 0.0
    """How long work on it takes at most, before and after its effect."""
    deletes_late_s: float = 0.0
    """How much later than answered files are deleted at most."""

    def __str__(self) -> str:
        """Name what is wrong."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"storage {name}={value}" for name, value in named if value)


NO_FAULTS = StorageFaults()
"""Nothing is."""


def draw_storage_faults(seed: int) -> StorageFaults:
    """Return what a seed draws of storage; each leaves some out."""
    dice = Random(f"storage {seed}")
    if dice.random() >= STORAGE_SHARE:
        return NO_FAULTS
    return StorageFaults(
        far=dice.random() < 0.5,
        lists_late_s=dice.choice((0.0, 3.0, 9.0)),
        fails=dice.choice((0.0, 0.0, 0.02, 0.1)),
        outages=dice.random() < 0.3,
        slow_s=dice.choice((0.0, 0.0, 2.0, 6.0)),
        deletes_late_s=dice.choice((0.0, 0.0, 6.0)),
    )


class SimStorage:
    """The storage of one lake."""

    def __init__(self, world: World, seed: int, faults: StorageFaults) -> None:
        self.faults = faults
        self.on = False
        """Whether operations fail and lag; listings are late at any time."""
        self.counts: dict[str, int] = {}
        self._world = world
        self._dice = Random(f"storage faults {seed}")
        self._gone: dict[str, tuple[float, fs.FileInfo]] = {}
        """Path → when it was deleted, and what it was."""
        self._outage_s = (0.0, 0.0)
        self._disk = fs.LocalFileSystem()
        self._later: SimLoop | None = None
        if faults != NO_FAULTS:
            self._later = world.process("storage")
            world.way_s = self._way_s

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        """Return what `FileSystem.from_uri` does, for a local URI."""
        _, root = fs.FileSystem.from_uri(uri)
        made: fs.FileSystem = Disk(self) if not self.faults.far else fs.PyFileSystem(Objects(self))
        return made, root

    @property
    def process(self) -> SimLoop | None:
        """In which late deletions happen, whoever else dies."""
        return self._later

    @contextmanager
    def still(self) -> Iterator[None]:
        """Do nothing wrong meanwhile: somebody looks who is no part of the lake."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before

    # What goes wrong.

    def _note(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _way_s(self) -> float:
        """Return how long a piece of work waits for the storage."""
        if not self.on or not self.faults.slow_s or self._dice.random() >= SLOW_SHARE:
            return 0.0
        self._note("storage: slow work")
        return self.faults.slow_s * self._dice.random()

    def _is_out(self) -> bool:
        now_s = self._world.now_s()
        if not self._outage_s[1]:
            self._outage_s = (now_s, now_s)
        while now_s >= self._outage_s[1]:
            begin_s = self._outage_s[1] + PEACE_MAX_S * self._dice.random()
            self._outage_s = (begin_s, begin_s + OUTAGE_MAX_S * self._dice.random())
        return self._outage_s[0] <= now_s

    def _fails(self) -> bool:
        if not self.on:
            return False
        if self.faults.outages and self._is_out():
            self._note("storage: failed in an outage")
            return True
        failed = bool(self.faults.fails) and self._dice.random() < self.faults.fails
        if failed:
            self._note("storage: failed")
        return failed

    def _fault(self) -> OSError:
        if self.faults.far:
            return OSError(self._dice.choice(AWS_CAUSES))
        return OSError(*self._dice.choice(CAUSES))

    def asked(self, work: Callable[[], T]) -> T:
        """Do something, or fail, before or after it is done."""
        if not self._fails():
            return work()
        if self._dice.random() < AFTER_SHARE:
            self._note("storage: failed, and was done")
            work()
        raise self._fault()

    # What there is to do.

    def look(self, asked: Any) -> Any:
        """Return what is known of a path, some paths, or all below one."""
        if isinstance(asked, fs.FileSelector):
            return self.asked(lambda: self._listed(asked))
        return self.asked(lambda: self._disk.get_file_info(asked))

    def _listed(self, asked: fs.FileSelector) -> list[fs.FileInfo]:
        found = self._disk.get_file_info(asked)
        if not self.faults.lists_late_s or self._dice.random() >= STALE_SHARE:
            return list(found)
        as_of_s = self._world.now_s() - self.faults.lists_late_s * self._dice.random()
        shown = [each for each in found if not _is_young(each, as_of_s)]
        below, there = f"{asked.base_dir}/", {each.path for each in found}
        ghosts = [
            info
            for path, (gone_s, info) in self._gone.items()
            if gone_s > as_of_s and path.startswith(below) and path not in there
            if not _is_young(info, as_of_s)
            if asked.recursive or "/" not in path.removeprefix(below)
        ]
        self._note("storage: late listings")
        self._note_many("storage: files not listed yet", len(found) - len(shown))
        self._note_many("storage: files listed that are gone", len(ghosts))
        return shown + ghosts

    def _note_many(self, what: str, count: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + count

    def delete(self, path: str) -> None:
        """Delete a file, now or later."""
        self.asked(lambda: self._delete(path))

    def _delete(self, path: str) -> None:
        info = self._disk.get_file_info(path)
        if info.type != fs.FileType.File:
            if self.faults.far:
                return  # To delete what is not there is no error there.
            self._disk.delete_file(path)
        late_s = self.faults.deletes_late_s * self._dice.random()
        if late_s and self._later is not None:
            self._note("storage: files deleted later than answered")
            self._later.call_later(late_s, self._really_delete, path, info)
        else:
            self._really_delete(path, info)

    def _really_delete(self, path: str, info: fs.FileInfo) -> None:
        if os.path.exists(path):
            self._disk.delete_file(path)
            self._gone[path] = (self._world.now_s(), info)

    def delete_folder(self, path: str) -> None:
        """Delete a folder, with all that is in it."""
        self.asked(lambda: self._disk.delete_dir(path))

    def make_folder(self, path: str, *, recursive: bool) -> None:
        """Make a folder."""
        self.asked(lambda: self._disk.create_dir(path, recursive=recursive))

    def move(self, source: str, target: str) -> None:
        """Give a file another name."""
        self.asked(lambda: self._disk.move(source, target))

    def read(self, path: str) -> pa.NativeFile:
        """Open a file."""
        return self.asked(lambda: self._disk.open_input_file(path))

    def stream(self, path: str) -> pa.NativeFile:
        """Open a file, to be read from its beginning."""
        return self.asked(lambda: self._disk.open_input_stream(path))

    def written(self, path: str) -> pa.PythonFile:
        """Open a new file; an object is there when it is closed, whole."""
        if self._fails():
            raise self._fault()
        return pa.PythonFile(_Sink(self, path), mode="w")

    def close_written(self, path: str, content: bytes) -> None:
        """Write a file that is closed; a disk may keep half of one that fails."""
        failed = self._fails()
        done = not failed or self._dice.random() < AFTER_SHARE
        if done or not self.faults.far:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            some = content if done else content[: len(content) // 2]
            scratch = f"{os.path.dirname(path)}/.simulated"
            with open(scratch, "wb") as file:
                file.write(some)
            os.replace(scratch, path)
        if failed:
            raise self._fault()


def _is_young(info: fs.FileInfo, as_of_s: float) -> bool:
    return info.type == fs.FileType.File and (info.mtime_ns or 0) / 1e9 > as_of_s


class _Sink(io.RawIOBase):
    """A file being written."""

    def __init__(self, storage: SimStorage, path: str) -> None:
        self._storage, self._path, self._parts = storage, path, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._parts += memoryview(content)
        return len(content)

    def tell(self) -> int:
        return len(self._parts)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._storage.close_written(self._path, bytes(self._parts))


class Disk(fs.LocalFileSystem):  # type: ignore[misc]  # Arrow has no types
    """A disk that may be far away, as that of a file server is."""

    def __init__(self, storage: SimStorage) -> None:
        super().__init__()
        self._storage = storage

    def get_file_info(self, paths_or_selector: Any) -> Any:
        return self._storage.look(paths_or_selector)

    def delete_file(self, path: str) -> None:
        self._storage.delete(path)

    def delete_dir(self, path: str) -> None:
        self._storage.delete_folder(path)

    def create_dir(self, path: str, *, recursive: bool = True) -> None:
        self._storage.make_folder(path, recursive=recursive)

    def move(self, src: str, dest: str) -> None:
        self._storage.move(src, dest)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._storage.read(path)

    def open_input_stream(self, path: str, **_: Any) -> pa.NativeFile:
        return self._storage.stream(path)

    def open_output_stream(self, path: str, **_: Any) -> pa.NativeFile:
        return self._storage.written(path)


class Objects(fs.FileSystemHandler):  # type: ignore[misc]  # Arrow has no types
    """An object store."""

    def __init__(self, storage: SimStorage) -> None:
        self._storage = storage

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return self._storage.look([*paths])  # type: ignore[no-any-return]  # Arrow does not say

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self._storage.look(selector)  # type: ignore[no-any-return]  # Arrow does not say

    def delete_file(self, path: str) -> None:
        self._storage.delete(path)

    def delete_dir(self, path: str) -> None:
        self._storage.delete_folder(path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._storage.make_folder(path, recursive=recursive)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError(path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError(src)

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError(src)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._storage.read(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._storage.stream(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        return self._storage.written(path)

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError(path)
