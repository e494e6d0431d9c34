"""Small files below `_neve/`: read whole within a bound, never seen half written."""

import posixpath

from common.errors import UnavailableError
from common.parquet.location import Location, fault


def read_small(location: Location, path: str, bytes_max: int) -> bytes | None:
    """Return what a small file holds, at most so many bytes; None: there is none.

    Raises:
        UnavailableError: The storage does not answer.
    """
    try:
        with location.open_stream(path) as stream:
            return bytes(stream.read(bytes_max))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error


def write_small(location: Location, path: str, content: bytes) -> None:
    """Write a small file in place of the one that is there.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    full = location.full(path)
    # An object appears whole when its stream is closed; a local file when it is renamed.
    target = f"{full}.new" if location.is_local else full
    try:
        if location.is_local:
            location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with location.filesystem.open_output_stream(target) as stream:
            stream.write(content)
        if location.is_local:
            location.filesystem.move(target, full)
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error
