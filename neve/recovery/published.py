"""The newest manifest of a location, for a rebuild: which files were in the table, and where."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import RequestError, UnavailableError
from common.metadata.store_values import AcceptedLoss
from common.model.tablet import TabletId
from common.parquet.location import Location, fault, is_silence
from common.parquet.manifest import FORMAT, FORMAT_VERSION, POINTER_PATH
from common.parquet.service_files import read_small
from common.readers.pool import in_reader

POINTER_BYTES_MAX = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a manifest says: the truth of the moment at which it was begun."""

    number: int
    begun_s: float
    """By the store's clock; what was in the table before is in the manifest."""
    table: str
    """Id of the table."""
    files: Mapping[str, str]
    """Path → the tablet that held the file, as the manifest names it."""
    loss: AcceptedLoss | None = None
    """What was in the table between these moments the manifest may not name."""

    @property
    def name(self) -> str:
        """Return what people are told."""
        return f"manifest {self.number}"


@in_reader("the manifest of {location.uri}")
def read_published(location: Location) -> Published | None:
    """Return the newest manifest of a location; None: none was published.

    Raises:
        RequestError: It cannot be read, is of another release, or is not whole.
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, POINTER_PATH, POINTER_BYTES_MAX)
    if content is None:
        return None
    try:
        body = json.loads(content)
        if (body["format"], body["version"]) != (FORMAT, FORMAT_VERSION):
            raise RequestError(
                f"{POINTER_PATH} is {body['format']} version {body['version']}, "
                f"this release reads {FORMAT} version {FORMAT_VERSION}"
            )
        files: dict[str, str] = {}
        for part in body["parts"]:
            files |= _part(location, part)
        for tablet in set(files.values()):
            TabletId.parse("", tablet)
        if len(files) != body["totals"]["files"]:
            raise RequestError(
                f"the parts of {POINTER_PATH} name {len(files)} files, "
                f"wanted {body['totals']['files']}"
            )
        return Published(
            number=int(body["number"]),
            begun_s=float(body["begun_s"]),
            table=str(body["table_id"]),
            files=files,
            loss=AcceptedLoss(**body["loss"]) if "loss" in body else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{POINTER_PATH} makes no sense: {error!r}") from error


def _part(location: Location, part: Mapping[str, Any]) -> dict[str, str]:
    path = str(part["path"])
    try:
        with location.open_file(path) as source:
            rows = pq.read_table(source, columns=["path", "tablet"])
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_silence(error):
            raise UnavailableError(fault(location, path, error)) from error
        raise RequestError(f"{path}, a part of the manifest, cannot be read: {error}") from error
    return dict(zip(rows["path"].to_pylist(), rows["tablet"].to_pylist(), strict=True))
