"""Files of a table's root: list, read, and create one only if it is absent.

Only folders of this machine and S3 are used. A creation is one request: nothing repeats it, because
the second try of a request that arrived would be refused by the first one.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, S3Store

from common.errors import RefusedError, RequestError, UnavailableError, first_line, redacted
from common.lake.source import Answer

LISTED_MAX = 2_000_000
"""Most files in a log."""
READ_TIMEOUT_S, CONNECT_TIMEOUT_S = 60, 10
READ_RETRIES_MAX = 3
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
NO_CONDITION = (
    "the storage of {} overwrites files although it is asked not to, so that commits of two "
    "writers would replace each other; Delta tables need conditional writes (If-None-Match)"
)

_NO_RIGHT = (failures.PermissionDeniedError, failures.UnauthenticatedError)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as listed. `tag` changes with its content."""

    path: str
    size_bytes: int
    tag: str
    changed_at_s: float = 0.0
    """When it was last written, by the clock of its storage."""


class LakeStorage:
    """The root of one table. Paths are relative to it, and not encoded."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        """Connect to nothing so far.

        Args:
            uri: A folder, or `file://` or `s3://` with one.
            options: Options of the object store, such as `aws_access_key_id`. Never logged.

        Raises:
            RequestError: The URI or an option is malformed.
        """
        parts = urlsplit(uri)
        self.folder: Path | None = None
        try:
            if parts.scheme in {"", "file"}:
                self.folder = Path(unquote(parts.path) if parts.scheme else uri).absolute()
                self.uri = str(self.folder)
                self._store: Any = None
            elif parts.scheme in {"s3", "s3a"} and parts.netloc and not parts.query:
                self.uri = f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
                self._store = _s3(parts.netloc, parts.path, options, READ_RETRIES_MAX)
                self._creator = _s3(parts.netloc, parts.path, options, 0)
            else:
                message = f"{redacted(uri)}: tables are read from folders and s3:// only"
                raise RequestError(message)
        except (failures.BaseError, TypeError, ValueError) as error:
            message = f"options of the storage of {redacted(uri)}: {_line(error)}"
            raise RequestError(message) from None

    def relative(self, uri: str) -> str | None:
        """Return the path of a decoded URI or absolute path in the root, or None if outside."""
        text = uri.removeprefix("file://") if self.folder else uri.replace("s3a://", "s3://", 1)
        root = f"{self.uri.rstrip('/')}/"
        return text.removeprefix(root) if text.startswith(root) else None

    def has_folder(self, folder: str) -> bool:
        """Return whether there may be files in a folder of the root."""
        return self.folder is None or (self.folder / folder).is_dir()

    def make_folder(self, folder: str) -> None:
        """Create a folder of the root, where the storage has folders."""
        if self.folder is not None:
            (self.folder / folder).mkdir(parents=True, exist_ok=True)

    def list_after(self, folder: str, name: str) -> Iterator[ListedFile]:
        """Yield the files of a folder whose names come after one, in no order."""
        with _translated(f"list {folder}", self.uri):
            count = 0
            offset = f"{folder}/{name}" if name else None
            for chunk in obstore.list(self._opened(), folder, offset=offset, chunk_size=1000):
                count += len(chunk)
                if count > LISTED_MAX:
                    message = f"{self.uri}/{folder} has more than {LISTED_MAX} files"
                    raise RefusedError(message)
                yield from map(_listed, chunk)

    def walk(self, after: str = "") -> Iterator[ListedFile]:
        """Yield all files below the root. Links are neither followed nor yielded.

        Args:
            after: A path that was yielded, with which a listing goes on; empty: from the begin. The
                files of a folder, and those below it, follow each other.
        """
        with _translated("list all files", self.uri):
            files = self._walk_folder(after) if self.folder else self._walk_bucket(after)
            for count, file in enumerate(files):
                if count >= LISTED_MAX:
                    message = f"{self.uri} has more than {LISTED_MAX} files"
                    raise RefusedError(message)
                yield file

    def _walk_bucket(self, after: str) -> Iterator[ListedFile]:
        for chunk in obstore.list(self._opened(), offset=after or None, chunk_size=1000):
            yield from map(_listed, chunk)

    def _walk_folder(self, after: str) -> Iterator[ListedFile]:
        """Yield the files of each folder, then those of the folders in it, all by name."""
        self._opened()
        assert self.folder is not None
        waiting = [("", after.split("/") if after else [])]
        while waiting:
            inside, begin = waiting.pop()
            folders = list[tuple[str, list[str]]]()
            with contextlib.suppress(FileNotFoundError):  # Deleted meanwhile.
                for entry in sorted(os.scandir(self.folder / inside), key=attrgetter("name")):
                    path = f"{inside}/{entry.name}" if inside else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if len(begin) < 2 or entry.name >= begin[0]:
                            folders.append((path, begin[1:] if entry.name in begin[:1] else []))
                    elif entry.is_file(follow_symlinks=False) and _is_after(entry.name, begin):
                        with contextlib.suppress(FileNotFoundError):
                            yield _stated(path, entry.stat(follow_symlinks=False))
            waiting += reversed(folders)

    def stat(self, path: str) -> ListedFile | None:
        """Return a file as `walk` does, or None if it is missing, or lies below a link."""
        try:
            with _translated(f"look at {path}", self.uri):
                if self.folder is None:
                    return _listed(obstore.head(self._opened(), path))
                folder = (self.folder / path).parent
                if folder.resolve() != self.folder.resolve() / folder.relative_to(self.folder):
                    return None
                status = (self.folder / path).lstat()
                return _stated(path, status) if S_ISREG(status.st_mode) else None
        except FileNotFoundError:
            return None

    def replace(self, path: str, data: bytes) -> None:
        """Write a file at once, whether there is one or not."""
        with _translated(f"write {path}", self.uri):
            if self.folder is None:
                obstore.put(self._opened(), path, data, use_multipart=False)
                return
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = _written_part(target, data)
            try:
                part.replace(target)
                _sync_folder(target.parent)
            finally:
                part.unlink(missing_ok=True)

    def read(self, path: str, bytes_max: int) -> bytes | None:
        """Return the bytes of a file, or None if it is missing.

        Raises:
            RefusedError: It is larger than `bytes_max`.
            UnavailableError: The storage did not answer.
        """
        try:
            with _translated(f"read {path}", self.uri):
                result = obstore.get(self._opened(), path)
                if result.meta["size"] > bytes_max:
                    size = result.meta["size"]
                    message = f"{self.uri}/{path} has {size} bytes, more than {bytes_max}"
                    raise RefusedError(message)
                return bytes(result.bytes())
        except FileNotFoundError:
            return None

    def read_range(self, path: str, start: int, length: int) -> bytes | None:
        """Return up to `length` bytes of a file, or None if it is missing."""
        try:
            with _translated(f"read {path}", self.uri):
                return bytes(obstore.get_range(self._opened(), path, start=start, length=length))
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> Answer:
        """Create a file unless there is one, by one request.

        Raises:
            RefusedError: The storage has no such request, or no right to it.
        """
        if self.folder is not None:
            return _create_locally(self.folder / path, data)
        try:
            obstore.put(self._creator, path, data, mode="create", use_multipart=False)
        except (failures.AlreadyExistsError, failures.PreconditionError):
            return Answer.CONFLICT
        except (failures.NotSupportedError, NotImplementedError):
            raise RefusedError(NO_CONDITION.format(self.uri)) from None
        except _NO_RIGHT as error:
            message = f"no right to create {self.uri}/{path}: {_line(error)}"
            raise RefusedError(message) from None
        except (failures.BaseError, OSError):
            return Answer.UNKNOWN
        return Answer.COMMITTED

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is skipped."""
        with contextlib.suppress(FileNotFoundError), _translated(f"delete {path}", self.uri):
            obstore.delete(self._opened(), [path])

    def require_conditions(self, path: str) -> None:
        """Refuse a storage that overwrites a file which may only be created.

        Args:
            path: A file for the trial. It is deleted at the end.
        """
        try:
            self.create(path, b"1")
            second = self.create(path, b"2")
        finally:
            self.delete(path)
        if second is Answer.COMMITTED:
            raise RefusedError(NO_CONDITION.format(self.uri))
        if second is Answer.UNKNOWN:
            message = f"{self.uri}: the storage does not answer to a conditional write"
            raise UnavailableError(message)

    def _opened(self) -> Any:
        if self._store is None and self.folder is not None:
            if not self.folder.is_dir():
                message = f"{self.uri} is no folder"
                raise RefusedError(message)
            self._store = LocalStore(prefix=self.folder)
        return self._store


def _s3(bucket: str, prefix: str, options: Mapping[str, str], retries_max: int) -> Any:
    config = {name.lower(): value for name, value in options.items()}
    named = [value for name, value in config.items() if name.endswith(("endpoint", "endpoint_url"))]
    endpoint = next(iter(named), next(filter(None, map(os.environ.get, ENDPOINTS)), ""))
    if endpoint:
        config["aws_endpoint"] = endpoint
        config = {name: value for name, value in config.items() if "endpoint_url" not in name}
    if config.pop("aws_conditional_put", "etag") != "etag":
        raise RefusedError(NO_CONDITION.format(f"s3://{bucket}"))
    return S3Store(
        bucket,
        prefix=prefix.strip("/") or None,
        config=config,  # type: ignore[arg-type]  # names are checked by the store
        client_options={
            "timeout": timedelta(seconds=READ_TIMEOUT_S),
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "allow_http": endpoint.startswith("http://"),
        },
        retry_config={
            "max_retries": retries_max,
            "retry_timeout": timedelta(seconds=READ_TIMEOUT_S),
        },
    )


def _create_locally(path: Path, data: bytes) -> Answer:
    """Create a file with its content at once, and on the disk before it is acknowledged.

    A version that a crash of the machine leaves empty would make the table unreadable.
    """
    part = None
    try:
        part = _written_part(path, data)
        path.hardlink_to(part)
        _sync_folder(path.parent)
    except FileExistsError:
        return Answer.CONFLICT
    except PermissionError as error:
        message = f"no right to create {path}: {error.strerror}"
        raise RefusedError(message) from None
    except OSError:
        return Answer.UNKNOWN
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    return Answer.COMMITTED


def _written_part(path: Path, data: bytes) -> Path:
    """Write a file next to another one, to take its name; nothing is left after an error."""
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    return part


def _is_after(name: str, begin: Sequence[str]) -> bool:
    """Return whether a file of a folder comes after the rest of a path."""
    return not begin or (len(begin) == 1 and name > begin[0])


def _listed(meta: Mapping[str, Any]) -> ListedFile:
    """Return a file as the object store lists it."""
    changed_at_s = meta["last_modified"].timestamp()
    return ListedFile(meta["path"], meta["size"], meta["e_tag"] or "", changed_at_s)


def _stated(path: str, status: os.stat_result) -> ListedFile:
    """Return a file of a folder. A copy may keep an old time of writing, but not of its inode."""
    tag = f"{status.st_ino:x}-{status.st_mtime_ns}-{status.st_size}"
    return ListedFile(path, status.st_size, tag, max(status.st_mtime, status.st_ctime))


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _translated(action: str, uri: str) -> Iterator[None]:
    """Raise what callers know in place of the errors of the object store."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (*_NO_RIGHT, PermissionError) as error:
        message = f"no right to {action} of {uri}: {_line(error)}"
        raise RefusedError(message) from None
    except (failures.BaseError, OSError, ValueError) as error:
        message = f"cannot {action} of {uri}: {_line(error)}"
        raise UnavailableError(message) from None


def _line(error: BaseException) -> str:
    """Return the first line only: the rest may show the request with its credentials."""
    return redacted(first_line(error))[:500]
