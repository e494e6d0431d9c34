"""Tries whether a location can be used: everything that the service does there, once."""

import posixpath
from collections.abc import Callable

from pyarrow import fs as arrow_fs

from common.errors import ConfigError
from common.parquet.location import Location
from common.parquet.object_store import cause_of

CONTENT = b"neve"
_Step = Callable[[Location, str], None]


def try_location(location: Location, path: str, now_s: Callable[[], float]) -> dict[str, float]:
    """Write, list, read and delete a small file; return how many seconds each took.

    Whatever fails, the file is not left behind if it can be deleted at all.

    Args:
        location: To be tried.
        path: Of a file that is not there.
        now_s: Tells the time.

    Raises:
        ConfigError: Says which step failed, and what may help.
    """
    took_s, full = {}, location.full(path)
    for name, step in _STEPS.items():
        begun_s = now_s()
        try:
            step(location, full)
        except OSError as error:
            if name != "delete":
                _clean(location, full)
            raise ConfigError(_told(location, name, error)) from error
        took_s[name] = now_s() - begun_s
    return took_s


def _told(location: Location, step: str, error: OSError) -> str:
    cause = cause_of(error)
    what = f"{cause} ({error})" if cause else str(error)
    return f"{location.uri}: {step} failed: {what}"


def _clean(location: Location, full: str) -> None:
    try:
        location.filesystem.delete_file(full)
    except OSError:
        return  # The first error says more.


def _write(location: Location, full: str) -> None:
    if location.is_local:
        location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
    with location.filesystem.open_output_stream(full) as stream:
        stream.write(CONTENT)


def _list(location: Location, full: str) -> None:
    selector = arrow_fs.FileSelector(posixpath.dirname(full), allow_not_found=True)
    found = {each.path: each.size for each in location.filesystem.get_file_info(selector)}
    if found.get(full) != len(CONTENT):
        raise OSError("a file that was just written is not listed")


def _read(location: Location, full: str) -> None:
    with location.filesystem.open_input_file(full) as file:
        content = file.read_at(file.size(), 0)
    if content != CONTENT:
        raise OSError("a file that was just written holds something else")


def _delete(location: Location, full: str) -> None:
    location.filesystem.delete_file(full)
    found = location.filesystem.get_file_info(full)
    if found.type != arrow_fs.FileType.NotFound:
        raise OSError("a file that was just deleted is still there")


_STEPS: dict[str, _Step] = {"write": _write, "list": _list, "read": _read, "delete": _delete}
